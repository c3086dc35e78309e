/* Asks CUDA and NVML what memory there is, as programs do, and prints the answers as one JSON line that begins with "guest: ".
 *
 *   ask [NAME=VALUE ...] [alloc=CARD:MEBIBYTES ...] [once]
 *
 * Sets variables, allocates on the cards as CUDA numbers them, asks, prints, and waits for SIGTERM unless told otherwise. Functions are
 * looked up by dlsym in libraries that are loaded at run time, as CUDA's runtime library and nvidia-smi do.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stub.h"

enum { MOST_ALLOCATIONS = 8 };

static void *library;

static void *function(const char *name) {
    void *found = library ? dlsym(library, name) : NULL;
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(3);
    }
    return found;
}

#define CALL(type, name, ...) (((CUresult(*) type)function(#name))(__VA_ARGS__))

static int is_preloaded(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        found |= strstr(line, "libvgpu.so") != NULL;
    if (maps != NULL)
        fclose(maps);
    return found;
}

static long long size_of(const char *path) {
    struct stat found;
    return path != NULL && stat(path, &found) == 0 ? (long long)found.st_size : -1;
}

static CUresult allocate(int device, unsigned long long mebibytes) {
    CUcontext context;
    CUdeviceptr address;
    CUresult result = CALL((CUcontext *, CUdevice), cuDevicePrimaryCtxRetain, &context, device);
    if (result == CUDA_SUCCESS)
        result = CALL((CUcontext), cuCtxSetCurrent, context);
    return result != CUDA_SUCCESS ? result : CALL((CUdeviceptr *, size_t), cuMemAlloc_v2, &address, mebibytes * MEBIBYTE);
}

static void print_cuda(int count) {
    for (int device = 0; device < count; device++) {
        CUcontext context;
        char bus[32] = "";
        size_t total = 0, available = 0, all = 0;
        CALL((char *, int, CUdevice), cuDeviceGetPCIBusId, bus, sizeof bus, device);
        CALL((size_t *, CUdevice), cuDeviceTotalMem_v2, &total, device);
        CALL((CUcontext *, CUdevice), cuDevicePrimaryCtxRetain, &context, device);
        CALL((CUcontext), cuCtxSetCurrent, context);
        CUresult result = CALL((size_t *, size_t *), cuMemGetInfo_v2, &available, &all);
        printf("%s{\"bus\": \"%s\", \"total\": %llu, \"free\": %llu, \"all\": %llu, \"result\": %d}", device ? ", " : "", bus,
               total / MEBIBYTE, available / MEBIBYTE, all / MEBIBYTE, result);
    }
}

static void print_nvml(void) {
    unsigned count = 0;
    CALL((void), nvmlInit_v2);
    CALL((unsigned *), nvmlDeviceGetCount_v2, &count);
    for (unsigned index = 0; index < count; index++) {
        nvmlDevice_t device;
        nvmlMemory_t memory = {0};
        nvmlPciInfo_t pci;
        CALL((unsigned, nvmlDevice_t *), nvmlDeviceGetHandleByIndex_v2, index, &device);
        CALL((nvmlDevice_t, nvmlPciInfo_t *), nvmlDeviceGetPciInfo_v3, device, &pci);
        CALL((nvmlDevice_t, nvmlMemory_t *), nvmlDeviceGetMemoryInfo, device, &memory);
        printf("%s{\"bus\": \"%s\", \"total\": %llu, \"used\": %llu}", index ? ", " : "", pci.busId, memory.total / MEBIBYTE,
               memory.used / MEBIBYTE);
    }
}

int main(int count, char **words) {
    struct { int device; unsigned long long mebibytes; } wanted[MOST_ALLOCATIONS];
    int allocations = 0, once = 0, devices = 0;
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, NULL); /* process 1 of a container has no other way to end by it */
    for (int index = 1; index < count; index++) {
        if (strcmp(words[index], "once") == 0)
            once = 1;
        else if (allocations < MOST_ALLOCATIONS
                 && sscanf(words[index], "alloc=%d:%llu", &wanted[allocations].device, &wanted[allocations].mebibytes) == 2)
            allocations++;
        else
            putenv(words[index]);
    }
    library = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult ready = CALL((unsigned), cuInit, 0);
    CALL((int *), cuDeviceGetCount, &devices);
    printf("guest: {\"init\": %d, \"preloaded\": %s, \"allocated\": [", ready, is_preloaded() ? "true" : "false");
    for (int index = 0; index < allocations; index++)
        printf("%s%d", index ? ", " : "", allocate(wanted[index].device, wanted[index].mebibytes));
    printf("], \"cuda\": [");
    print_cuda(devices);
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    printf("], \"nvml\": [");
    print_nvml();
    printf("], \"cache\": %lld, \"pid\": %d}\n", size_of(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE")), getpid());
    fflush(stdout);
    int signal_number;
    return once ? 0 : sigwait(&ends, &signal_number);
}
