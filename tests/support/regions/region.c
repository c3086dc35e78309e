/* Writes HAMi-core's shared region as a container's processes would, for tests of who reads it (built by hack/node/region.py).
 *
 * The structs are those of HAMi-core's sources (github.com/Project-HAMi/HAMi-core, src/multiprocess/multiprocess_memory_limit.h, 8f3a89c,
 * and before it had a version), written down here from their documented fields.
 *
 *   region offsets VERSION                     prints the offsets that readers need, as JSON
 *   region write VERSION FILE < COMMANDS       makes the file and carries out one command a line:
 *       uuid NUMBER TEXT | process SLOT STATUS | use SLOT NUMBER CONTEXT MODULE DATA OFFSET TOTAL UTILIZATION
 *       processes COUNT | cards COUNT | kernel RECENT SWITCH PRIORITY TIME
 *   region busy FILE SECONDS                   counts up and down in the file until the time is over, as a program at work does
 */
#include <fcntl.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 19920718, CARDS = 16, PROCESSES = 1024 };

typedef char uuid[96];

typedef struct {
    uint64_t context_size, module_size, data_size, offset, total;
} memory_v0;

typedef struct {
    uint64_t dec_util, enc_util, sm_util;
} util_v0;

typedef struct {
    int32_t pid, hostpid;
    memory_v0 used[CARDS];
    uint64_t monitorused[CARDS];
    util_v0 device_util[CARDS];
    int32_t status;
} slot_v0;

typedef struct {
    int32_t initialized_flag, sm_init_flag;
    uint32_t owner_pid;
    char sem[32]; /* without the alignment of sem_t, as HAMi's monitor has it */
    uint64_t device_num;
    uuid uuids[CARDS];
    uint64_t limit[CARDS], sm_limit[CARDS];
    slot_v0 procs[PROCESSES];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
} region_v0;

typedef struct {
    uint64_t context_size, module_size, data_size, offset, total, unused[3];
} memory_v1;

typedef struct {
    uint64_t dec_util, enc_util, sm_util, unused[3];
} util_v1;

typedef struct {
    int32_t pid, hostpid;
    memory_v1 used[CARDS];
    uint64_t monitorused[CARDS];
    util_v1 device_util[CARDS];
    int32_t status;
    uint64_t seqlock, unused[2];
} slot_v1;

typedef struct {
    int32_t initialized_flag;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    size_t owner_pid;
    sem_t sem;
    uint64_t device_num;
    uuid uuids[CARDS];
    uint64_t limit[CARDS], sm_limit[CARDS];
    slot_v1 procs[PROCESSES];
    int proc_num, utilization_switch, recent_kernel, priority;
    uint64_t last_kernel_time;
    sem_t sem_postinit;
} region_v1;

#define OFFSETS(V, REGION, SLOT, MEMORY, UTIL)                                                                                              \
    printf("{\"size\": %zu, \"card_count\": %zu, \"uuids\": %zu, \"slots\": %zu, \"slot_size\": %zu, \"memory\": %zu, \"memory_size\": %zu, " \
           "\"utilization\": %zu, \"utilization_size\": %zu, \"status\": %zu, \"counters\": %zu, \"utilization_switch\": %zu, "              \
           "\"recent_kernel\": %zu}\n",                                                                                                     \
           sizeof(REGION), offsetof(REGION, device_num), offsetof(REGION, uuids), offsetof(REGION, procs), sizeof(SLOT),                    \
           offsetof(SLOT, used), sizeof(MEMORY), offsetof(SLOT, device_util), sizeof(UTIL), offsetof(SLOT, status),                         \
           offsetof(REGION, proc_num), offsetof(REGION, utilization_switch), offsetof(REGION, recent_kernel))

static void fail(const char *what) {
    perror(what);
    exit(EXIT_FAILURE);
}

/* As try_create_shrreg: one byte is written behind the region */
static void *mapped(const char *path, size_t size) {
    int file = open(path, O_RDWR | O_CREAT, 0666);
    if (file < 0 || lseek(file, (off_t)size, SEEK_SET) < 0 || write(file, "", 1) != 1)
        fail(path);
    void *region = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED)
        fail("mmap");
    return region;
}

#define EXECUTE(REGION)                                                                                                         \
    if (sscanf(line, "uuid %d %95s", &a, text) == 2) {                                                                          \
        memset(REGION->uuids[a], 0, sizeof(uuid));                                                                              \
        memcpy(REGION->uuids[a], text, strlen(text));                                                                           \
    } else if (sscanf(line, "processes %d", &a) == 1)                                                                           \
        REGION->proc_num = a;                                                                                                   \
    else if (sscanf(line, "process %d %d", &a, &b) == 2) {                                                                      \
        REGION->procs[a].pid = a + 1;                                                                                           \
        REGION->procs[a].status = b;                                                                                            \
    } else if (sscanf(line, "use %d %d %lu %lu %lu %lu %lu %lu", &a, &b, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5]) == 8) {      \
        REGION->procs[a].used[b].context_size = n[0];                                                                           \
        REGION->procs[a].used[b].module_size = n[1];                                                                            \
        REGION->procs[a].used[b].data_size = n[2];                                                                              \
        REGION->procs[a].used[b].offset = n[3];                                                                                 \
        REGION->procs[a].used[b].total = n[4];                                                                                  \
        REGION->procs[a].device_util[b].sm_util = n[5];                                                                         \
    } else if (sscanf(line, "cards %lu", &n[0]) == 1)                                                                           \
        REGION->device_num = n[0];                                                                                              \
    else if (sscanf(line, "kernel %d %d %d %ld", &a, &b, &c, &when) == 4) {                                                     \
        REGION->recent_kernel = a;                                                                                              \
        REGION->utilization_switch = b;                                                                                         \
        REGION->priority = c;                                                                                                   \
    } else {                                                                                                                    \
        fprintf(stderr, "unknown: %s", line);                                                                                   \
        return EXIT_FAILURE;                                                                                                    \
    }

static int written(int version, const char *path) {
    char line[256], text[96];
    int a, b, c;
    long when = 0;
    unsigned long n[6];
    region_v0 *old = version == 0 ? mapped(path, sizeof(region_v0)) : NULL;
    region_v1 *new = version == 1 ? mapped(path, sizeof(region_v1)) : NULL;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (old != NULL) {
            EXECUTE(old)
        } else {
            EXECUTE(new)
            new->last_kernel_time = (uint64_t)when;
        }
    }
    if (old != NULL)
        old->initialized_flag = MAGIC;
    else {
        new->major_version = 1;
        new->minor_version = 2;
        new->initialized_flag = MAGIC;
    }
    return EXIT_SUCCESS;
}

static int busy(const char *path, double seconds) {
    region_v1 *region = mapped(path, sizeof(region_v1));
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        for (int slot = 0; slot < PROCESSES; slot++) {
            region->procs[slot].status = slot & 1;
            region->procs[slot].used[0].total ^= 1UL << 63 | 4096;
            region->proc_num = slot * 7919;
            region->device_num = ~region->device_num;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - begun.tv_sec) + (double)(now.tv_nsec - begun.tv_nsec) / 1e9 < seconds);
    return EXIT_SUCCESS;
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "offsets") == 0) {
        if (atoi(arguments[2]) == 0)
            OFFSETS(0, region_v0, slot_v0, memory_v0, util_v0);
        else
            OFFSETS(1, region_v1, slot_v1, memory_v1, util_v1);
        return EXIT_SUCCESS;
    }
    if (count == 4 && strcmp(arguments[1], "write") == 0)
        return written(atoi(arguments[2]), arguments[3]);
    if (count == 4 && strcmp(arguments[1], "busy") == 0)
        return busy(arguments[2], atof(arguments[3]));
    fprintf(stderr, "region offsets VERSION | write VERSION FILE | busy FILE SECONDS\n");
    return EXIT_FAILURE;
}
