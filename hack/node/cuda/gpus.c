/* A libcuda.so.1 and libnvidia-ml.so.1 without hardware, for containers of tests/node (built by hack/node/cuda.py).
 *
 * Which cards the machine has is read from $PRETENDED_GPUS, separated by commas: number of the device node, PCI address, MiB, speed.
 *
 *   PRETENDED_GPUS="0 0000:00:1b.0 16384 1,1 0000:00:1c.0 23028 2"
 *
 * A container sees those whose device nodes it has. NVML numbers them by PCI address. CUDA begins with the fastest, unless
 * CUDA_DEVICE_ORDER is PCI_BUS_ID, and shows only those that CUDA_VISIBLE_DEVICES lists, in its order (CUDA C Programming Guide,
 * "CUDA Environment Variables"). Memory that is allocated is counted for the process alone, and is not there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stub.h"

struct nvmlDevice_st {
    unsigned node, mebibytes, speed;
    unsigned long long used;
    char bus[32];
};
typedef struct nvmlDevice_st Card;

static Card cards[MOST_CARDS]; /* as NVML numbers them */
static int card_count;
static Card *shown[MOST_CARDS]; /* as CUDA numbers them */
static int shown_count;
static CUdevice current;

static int by_bus(const void *one, const void *other) {
    return strcmp(((const Card *)one)->bus, ((const Card *)other)->bus);
}

static int by_speed(const void *one, const void *other) {
    const Card *a = *(Card *const *)one, *b = *(Card *const *)other;
    return a->speed != b->speed ? (a->speed < b->speed ? 1 : -1) : strcmp(a->bus, b->bus);
}

static void look(void) {
    char text[1024], *rest = text, *entry;
    snprintf(text, sizeof text, "%s", getenv("PRETENDED_GPUS") ? getenv("PRETENDED_GPUS") : "");
    card_count = 0;
    while ((entry = strsep(&rest, ",")) != NULL && card_count < MOST_CARDS) {
        Card card = {0};
        char path[32];
        if (sscanf(entry, "%u %31s %u %u", &card.node, card.bus, &card.mebibytes, &card.speed) != 4)
            continue;
        snprintf(path, sizeof path, "/dev/nvidia%u", card.node);
        if (access(path, R_OK | W_OK) == 0)
            cards[card_count++] = card;
    }
    qsort(cards, (size_t)card_count, sizeof *cards, by_bus);
}

static void choose(void) {
    Card *ordered[MOST_CARDS];
    const char *order = getenv("CUDA_DEVICE_ORDER"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (int index = 0; index < card_count; index++)
        ordered[index] = &cards[index];
    if (order == NULL || strcmp(order, "PCI_BUS_ID") != 0)
        qsort(ordered, (size_t)card_count, sizeof *ordered, by_speed);
    shown_count = 0;
    if (visible == NULL) {
        memcpy(shown, ordered, sizeof shown);
        shown_count = card_count;
        return;
    }
    for (const char *at = visible; at != NULL && *at != 0 && shown_count < card_count; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        int number = atoi(at);
        if (number < 0 || number >= card_count)
            break;
        shown[shown_count++] = ordered[number];
    }
}

/* --- CUDA --- */

CUresult cuInit(unsigned flags) {
    (void)flags;
    look();
    choose();
    return shown_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDeviceGetCount(int *count) {
    *count = shown_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *bus, int length, CUdevice device) {
    if (device < 0 || device >= shown_count)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(bus, (size_t)length, "%s", shown[device]->bus);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (device < 0 || device >= shown_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = shown[device]->mebibytes * MEBIBYTE;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (device < 0 || device >= shown_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *context = shown[device];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    for (int device = 0; device < shown_count; device++)
        if (shown[device] == context)
            current = device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = current;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    *total = shown[current]->mebibytes * MEBIBYTE;
    *unused = *total - shown[current]->used;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    static CUdeviceptr next = 1ULL << 40;
    if (shown[current]->used + bytes > shown[current]->mebibytes * MEBIBYTE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    shown[current]->used += bytes;
    *address = next;
    next += bytes;
    return CUDA_SUCCESS;
}

/* --- NVML --- */

nvmlReturn_t nvmlInit_v2(void) {
    look();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)card_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index >= (unsigned)card_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &cards[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    *index = (unsigned)(device - cards);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "%s", device->bus);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    memory->total = device->mebibytes * MEBIBYTE;
    memory->used = device->used;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}
