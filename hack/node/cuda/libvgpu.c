/* A library that limits memory as HAMi-core does, for containers of tests/node (built by hack/node/cuda.py).
 *
 * It is no copy of HAMi-core: HAMi-core needs CUDA's headers to be built, and its sources are in no package registry. It does what
 * HAMi-core's sources (github.com/Project-HAMi/HAMi-core, 8f3a89c) do with variables, the file of usages and lock, as far as containers
 * depend on it; each function names the source that it follows. It does not count cores, nor contexts, nor memory that is freed.
 * Kept as there: limits and usages go by CUDA's numbers, which are taken for NVML's, and those of the file hold, whoever made it.
 * (src/utils.c:175 looks at CUDA_VISIBLE_DEVICES, and src/nvml/hook.c:304, to which cuInit comes after that, undoes it.)
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "stub.h"

enum { MADE = 19920718, MOST_PROCESSES = 1024, WAIT_SECONDS = 10, WHOLE_CORES = 100 };

#define EXPORTED __attribute__((visibility("default")))
#define COMPLAIN(...) fprintf(stderr, "[limits] " __VA_ARGS__)

/* src/multiprocess/multiprocess_memory_limit.h: shrreg_proc_slot_t, shared_region_t of version 1.2, which the node driver reads */
typedef struct {
    uint64_t context, module, data, offset, total, unused[3];
} Memory;

typedef struct {
    int32_t pid, host_pid;
    Memory used[MOST_CARDS];
    uint64_t monitored[MOST_CARDS];
    struct {
        uint64_t decoder, encoder, cores, unused[3];
    } busy[MOST_CARDS];
    int32_t status;
    uint64_t seqlock, unused[2];
} Process;

typedef struct {
    int32_t made;
    uint32_t major, minor;
    int32_t cores_made;
    size_t owner;
    sem_t lock;
    uint64_t card_count;
    char uuids[MOST_CARDS][96];
    uint64_t limit[MOST_CARDS], core_limit[MOST_CARDS];
    Process processes[MOST_PROCESSES];
    int process_count, utilization_switch, recent_kernel, priority;
    uint64_t last_kernel;
    sem_t lock_after;
} Region;

typedef void *(*Search)(void *, const char *);

static pthread_once_t made_once = PTHREAD_ONCE_INIT;
static Region *region;

/* src/libvgpu.c:74 dlsym, where it looks for the real one */
static void *search(void *handle, const char *name) {
    static Search real;
    if (real == NULL)
        real = (Search)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (real == NULL)
        real = (Search)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    return real(handle, name);
}

static void *in(const char *library, const char *name) {
    return search(dlopen(library, RTLD_NOW | RTLD_NODELETE), name);
}

#define CUDA(type, name, ...) (((CUresult(*) type)in("libcuda.so.1", #name))(__VA_ARGS__))
#define NVML(type, name, ...) (((nvmlReturn_t(*) type)in("libnvidia-ml.so.1", #name))(__VA_ARGS__))

/* --- limits --- */

/* src/multiprocess/multiprocess_memory_limit.c:95 get_limit_from_env: a number of any base and a unit; 0: no limit */
static unsigned long long amount(const char *name) {
    const char *text = getenv(name);
    char *end;
    if (text == NULL || *text == 0)
        return 0;
    unsigned long long number = strtoul(text, &end, 0);
    switch (text[strlen(text) - 1]) {
    case 'g': case 'G': return number << 30;
    case 'm': case 'M': return number << 20;
    case 'k': case 'K': return number << 10;
    default: return number;
    }
}

/* :178 do_init_device_memory_limits, :195 do_init_device_sm_limits: that of the number, else that of all, else `otherwise` */
static void read_limits(uint64_t *limits, const char *name, unsigned long long otherwise) {
    unsigned long long common = amount(name) ? amount(name) : otherwise;
    for (int number = 0; number < MOST_CARDS; number++) {
        char own[32];
        snprintf(own, sizeof own, "%s_%d", name, number);
        limits[number] = amount(own) ? amount(own) : common;
    }
}

/* --- the file of usages --- */

/* src/include/process_utils.h:17 proc_alive */
static int is_alive(int pid) {
    char path[32], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*d %*s %c", &state) != 1)
        state = 'R';
    fclose(file);
    return strchr("ZXx", state) == NULL;
}

/* src/multiprocess/multiprocess_memory_limit.c:740 lock_shrreg: a dead owner's lock is taken after a while */
static void lock(void) {
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += WAIT_SECONDS;
        if (sem_timedwait(&region->lock, &until) == 0) {
            region->owner = (size_t)getpid();
            return;
        }
        if (errno == ETIMEDOUT && region->owner != 0 && !is_alive((int)region->owner)) {
            region->owner = 0;
            sem_post(&region->lock);
        }
    }
}

/* :807 unlock_shrreg */
static void unlock(void) {
    region->owner = 0;
    sem_post(&region->lock);
}

/* :863 clear_proc_slot_nolock: processes are told apart by their numbers in the container. Returns whether any was dead */
static int forget_dead(void) {
    int found = 0, index = 0;
    while (index < region->process_count) {
        if (region->processes[index].pid != 0 && is_alive(region->processes[index].pid)) {
            index++;
            continue;
        }
        region->processes[index] = region->processes[--region->process_count];
        found = 1;
    }
    return found;
}

/* :690 exit_handler */
static void leave(void) {
    for (int index = 0; region != NULL && index < region->process_count; index++)
        if (region->processes[index].pid == getpid())
            region->processes[index].pid = 0;
}

/* :948 init_proc_slot_withlock: what a process of the same number used is forgotten */
static void enter(void) {
    lock();
    int index = 0;
    while (index < region->process_count && region->processes[index].pid != getpid())
        index++;
    if (index == MOST_PROCESSES) {
        unlock();
        exit(EXIT_FAILURE);
    }
    region->processes[index] = (Process){.pid = getpid(), .status = 1};
    if (index == region->process_count)
        region->process_count++;
    forget_dead();
    unlock();
}

/* :138 init_device_info asks NVML for the uuids of all cards; here they are those that the container was told of, by number */
static void name_cards(void) {
    const char *text = getenv("NVIDIA_VISIBLE_DEVICES");
    while (text != NULL && *text != 0 && region->card_count < MOST_CARDS) {
        size_t length = strcspn(text, ",");
        snprintf(region->uuids[region->card_count++], sizeof region->uuids[0], "%.*s", (int)length, text);
        text += length + (text[length] == ',');
    }
}

/* :1057 try_create_shrreg: who cannot have the file ends; who finds one takes its limits, and says where its own differ */
static void make(void) {
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    uint64_t limit[MOST_CARDS], core_limit[MOST_CARDS];
    if (path == NULL)
        path = "/tmp/cudevshr.cache";
    atexit(leave);
    umask(0);
    int file = open(path, O_RDWR | O_CREAT, 0666);
    if (file == -1 || lseek(file, sizeof(Region), SEEK_SET) == -1 || write(file, "", 1) != 1
        || (region = mmap(NULL, sizeof(Region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) == MAP_FAILED
        || lseek(file, 0, SEEK_SET) == -1 || lockf(file, F_LOCK, sizeof(Region)) != 0) {
        COMPLAIN("%s: %s\n", path, strerror(errno));
        exit(EXIT_FAILURE);
    }
    read_limits(limit, "CUDA_DEVICE_MEMORY_LIMIT", 0);
    read_limits(core_limit, "CUDA_DEVICE_SM_LIMIT", WHOLE_CORES);
    if (region->made != MADE) {
        memcpy(region->limit, limit, sizeof limit);
        memcpy(region->core_limit, core_limit, sizeof core_limit);
        sem_init(&region->lock, 1, 1);
        region->process_count = 0;
        name_cards();
        region->utilization_switch = 1;
        region->recent_kernel = 2;
        region->priority = getenv("CUDA_TASK_PRIORITY") != NULL ? atoi(getenv("CUDA_TASK_PRIORITY")) : 1;
        region->major = 1;
        region->minor = 2;
        region->made = MADE;
    } else if (memcmp(region->limit, limit, sizeof limit) != 0) {
        COMPLAIN("%s has other limits of memory\n", path);
    }
    if (lockf(file, F_ULOCK, sizeof(Region)) != 0)
        COMPLAIN("%s stays locked: %s\n", path, strerror(errno));
    enter();
}

static void ensure(void) {
    pthread_once(&made_once, make);
}

/* :282 get_gpu_memory_usage */
static unsigned long long usage(int number) {
    unsigned long long sum = 0;
    for (int index = 0; index < region->process_count; index++)
        sum += region->processes[index].used[number].total;
    return sum;
}

/* :452 add_gpu_device_memory_usage */
static void count(CUdevice device, size_t bytes) {
    for (int index = 0; index < region->process_count; index++)
        if (region->processes[index].pid == getpid()) {
            region->processes[index].used[device].data += bytes;
            region->processes[index].used[device].total += bytes;
        }
}

/* src/allocator/allocator.c:33 oom_check */
static int is_too_much(CUdevice device, size_t bytes) {
    if (region->limit[device] == 0 || usage(device) + bytes <= region->limit[device])
        return 0;
    return forget_dead() ? is_too_much(device, bytes) : 1;
}

/* --- what programs call --- */

/* src/libvgpu.c:931 cuInit */
EXPORTED CUresult cuInit(unsigned flags) {
    ensure();
    return CUDA((unsigned), cuInit, flags);
}

/* src/cuda/device.c:90: the limit as it is; without one a card of 0 bytes */
EXPORTED CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ensure();
    *bytes = region->limit[device];
    return CUDA_SUCCESS;
}

/* src/cuda/memory.c:486 */
EXPORTED CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    CUdevice device;
    ensure();
    CUDA((CUdevice *), cuCtxGetDevice, &device);
    unsigned long long used = usage(device), limit = region->limit[device];
    CUDA((size_t *, size_t *), cuMemGetInfo_v2, unused, total);
    if (limit == 0) {
        *unused = *total - used;
        return CUDA_SUCCESS;
    }
    if (limit < used)
        return CUDA_ERROR_INVALID_VALUE;
    *total = limit < *total ? limit : *total;
    *unused = *total > used ? *total - used : 0;
    return CUDA_SUCCESS;
}

/* src/cuda/memory.c:116, src/allocator/allocator.c:104 add_chunk */
EXPORTED CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    CUdevice device;
    ensure();
    CUDA((CUdevice *), cuCtxGetDevice, &device);
    if (is_too_much(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA((CUdeviceptr *, size_t), cuMemAlloc_v2, address, bytes);
    if (result == CUDA_SUCCESS)
        count(device, bytes);
    return result;
}

/* src/nvml/hook.c:318 _nvmlDeviceGetMemoryInfo */
EXPORTED nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    unsigned index = 0;
    ensure();
    nvmlReturn_t result = NVML((nvmlDevice_t, nvmlMemory_t *), nvmlDeviceGetMemoryInfo, device, memory);
    NVML((nvmlDevice_t, unsigned *), nvmlDeviceGetIndex, device, &index);
    if (result != NVML_SUCCESS)
        return result;
    memory->used = usage((int)index);
    if (region->limit[index] != 0) {
        memory->total = region->limit[index];
        memory->free = memory->total - memory->used;
    }
    return NVML_SUCCESS;
}

/* src/libvgpu.c:74 dlsym: what begins with cu is looked for in this library first, also if the path that HAMi's installation uses is not there */
EXPORTED void *dlsym(void *handle, const char *name) {
    void *found = NULL;
    if (strncmp(name, "cu", 2) == 0)
        found = search(dlopen("/usr/local/vgpu/libvgpu.so", RTLD_LAZY), name);
    else if (strcmp(name, "nvmlDeviceGetMemoryInfo") == 0)
        return (void *)nvmlDeviceGetMemoryInfo;
    return found != NULL ? found : search(handle, name);
}
