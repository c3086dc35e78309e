/* A libnvidia-ml.so.1 without hardware, for tests of hami_dra.vendors.nvidia.nvml and hami_dra.vendors.nvidia.monitor, and for hack/oracle/nvcdi.
 * Built and described by tests/support/nvml/fake.py.
 *
 * What it pretends is read from the file $FAKE_NVML_CONFIG when the library is initialised; one statement a line, words
 * separated by spaces, "quoted" where they hold some, # begins a comment. GPUs are numbered in the order of their lines.
 *
 *   driver 550.90.07
 *   cuda 12040
 *   gpu uuid=GPU-1 name="NVIDIA H100" memory=81559 bus=00000000:1B:00.0 minor=0 serial=1 brand=14 arch=9 cc=9.0
 *       [numa=0] [mig=0|1]            memory in MiB; without mig= the GPU cannot be cut
 *       [pending=0|1] [reset=0|CODE]  its MIG mode after the next reset; changing it needs a reset, which ends with CODE
 *       [cluster=UUID clique=N]       its place in an NVLink fabric that spans machines; [fabric=STATE] 3 (completed) unless said
 *       [pid=N] [tells=0]             a process runs on it (nothing is switched then); profiles are told in MIG mode only
 *   lane GPU LANE gpu PEER            NVLink lane to another GPU
 *   lane GPU LANE switch BUS          ... to an NVSwitch
 *   lane GPU LANE off                 ... that is down
 *   ancestor A B LEVEL                nvmlGpuTopologyLevel_t both ways; 50 (system) unless given
 *   p2p A B STATUS                    nvmlGpuP2PStatus_t both ways; 5 (not supported) unless given
 *   remapped GPU FAILURE              of row remapping
 *   work GPU [used=MIB] [reserved=MIB] [busy=%] [membusy=%] [temp=C] [memtemp=C] [power=mW] [fan=%] [corrected=N] [uncorrected=N]
 *                                     what it reports at work; what is not said is not supported, but for used and reserved (0)
 *   profile GPU NUMBER id=19 name="MIG 1g.10gb" slices=1 count=7 memory=9728 sm=16 ce=1 dec=1 enc=0 jpeg=1 ofa=0 at=0,1,2 size=1
 *   instance GPU id=1 profile=19 start=0 size=1 [ci=0 uuid=MIG-1]
 *   fail FUNCTION GPU|* CODE [AFTER]  the function returns CODE, after AFTER successes
 *   hang FUNCTION GPU|*               the function never returns
 *
 * Lines that are appended to $FAKE_NVML_EVENTS while it runs happen at once:
 *   event GPU|- TYPE DATA [GI CI]     nvmlEventSetWait tells it (numbers decimal or 0x...); - = of no GPU
 *   lost GPU                          from now on every call about the GPU says NVML_ERROR_GPU_IS_LOST
 *
 * GPU and compute instances can be made and destroyed, and MIG mode switched; an open event set is in the way of a reset. That lasts as long as the process.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, GPU_IS_LOST = 15, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};
enum { MAX_GPUS = 64, MAX_LANES = 36, MAX_PROFILES = 24, MAX_INSTANCES = 16, MAX_PLACES = 16, MAX_TROUBLES = 64, MAX_EVENTS = 256 };
enum { LANE_NONE, LANE_OFF, LANE_GPU, LANE_SWITCH };
enum { NOT_A_GPU = -1, NOT_SAID = -1 };

typedef int status;
typedef struct { unsigned start, size; } Placement;
typedef struct Gpu Gpu;

typedef struct {
    int kind, peer;
    char bus[32];
} Lane;
typedef struct {
    int present;
    unsigned id, slices, count, sm, ce, dec, enc, jpeg, ofa, places;
    unsigned long long memory;
    char name[96];
    Placement place[MAX_PLACES];
} Profile;
typedef struct {
    Gpu *gpu; /* NULL: free */
    unsigned id, profile, ci;
    int has_ci;
    Placement placement;
    char uuid[96];
} Instance;
struct Gpu {
    char uuid[96], name[96], serial[30], bus[32];
    unsigned minor, brand, arch, major, minor_cc, mig, remap_failure;
    int numa, can_mig, lost, reset, pid, shy;
    char cluster[40];
    unsigned clique, fabric;
    unsigned pending;
    unsigned long long memory, watched;
    Lane lane[MAX_LANES];
    unsigned long long used, reserved;
    long busy, membusy, temp, memtemp, power, fan, corrected, uncorrected; /* NOT_SAID: not supported */
    Profile profile[MAX_PROFILES];
    Instance instance[MAX_INSTANCES];
};
typedef struct {
    char function[96];
    int gpu, code, after, hang; /* gpu NOT_A_GPU: any */
} Trouble;
typedef struct {
    Gpu *gpu;
    unsigned long long type, data;
    unsigned gi, ci;
} Event;

static Gpu gpus[MAX_GPUS];
static int gpu_count, initialised, open_sets;
static int ancestor[MAX_GPUS][MAX_GPUS], peer_status[MAX_GPUS][MAX_GPUS];
static char driver[80] = "0";
static int cuda = 0;
static Trouble troubles[MAX_TROUBLES];
static int trouble_count;
static Event events[MAX_EVENTS];
static int event_first, event_end;
static long events_read;
static unsigned next_instance = 1;

/* --- the files ---------------------------------------------------------------------------------------------------- */

enum { MAX_WORDS = 32, LINE = 1024 };

static int split(char *line, char **words) {
    int count = 0;
    char *out = line, *in = line;
    while (*in && count < MAX_WORDS) {
        while (*in == ' ' || *in == '\n') in++;
        if (!*in || *in == '#') break;
        words[count++] = out;
        for (int quoted = 0; *in && (quoted || (*in != ' ' && *in != '\n')); in++) {
            if (*in == '"') quoted = !quoted;
            else *out++ = *in;
        }
        if (*in) in++;
        *out++ = 0;
    }
    return count;
}

static const char *text(char **words, int count, const char *key) {
    size_t length = strlen(key);
    for (int i = 0; i < count; i++)
        if (!strncmp(words[i], key, length) && words[i][length] == '=') return words[i] + length + 1;
    return NULL;
}

static long number(char **words, int count, const char *key, long otherwise) {
    const char *found = text(words, count, key);
    return found ? strtol(found, NULL, 0) : otherwise;
}

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from ? from : ""); }

static void wrong(const char *line) {
    fprintf(stderr, "fake NVML: cannot read: %s\n", line);
    exit(70);
}

static Gpu *gpu_at(const char *word) {
    long index = strtol(word, NULL, 0);
    if (index < 0 || index >= gpu_count) wrong(word);
    return &gpus[index];
}

static void add_gpu(char **words, int count) {
    Gpu *gpu = &gpus[gpu_count++];
    const char *cc = text(words, count, "cc");
    memset(gpu, 0, sizeof *gpu);
    copy(gpu->uuid, sizeof gpu->uuid, text(words, count, "uuid"));
    copy(gpu->name, sizeof gpu->name, text(words, count, "name"));
    copy(gpu->serial, sizeof gpu->serial, text(words, count, "serial"));
    copy(gpu->bus, sizeof gpu->bus, text(words, count, "bus"));
    gpu->memory = (unsigned long long)number(words, count, "memory", 0) << 20;
    gpu->minor = number(words, count, "minor", gpu_count - 1);
    gpu->brand = number(words, count, "brand", 0);
    gpu->arch = number(words, count, "arch", 0);
    if (cc) sscanf(cc, "%u.%u", &gpu->major, &gpu->minor_cc);
    gpu->numa = number(words, count, "numa", -1);
    gpu->can_mig = text(words, count, "mig") != NULL;
    gpu->mig = number(words, count, "mig", 0);
    gpu->pending = number(words, count, "pending", gpu->mig);
    gpu->reset = number(words, count, "reset", -1);
    gpu->pid = number(words, count, "pid", 0);
    copy(gpu->cluster, sizeof gpu->cluster, text(words, count, "cluster"));
    gpu->clique = number(words, count, "clique", 0);
    gpu->fabric = number(words, count, "fabric", 3);
    gpu->shy = !number(words, count, "tells", 1);
    gpu->busy = gpu->membusy = gpu->temp = gpu->memtemp = gpu->power = gpu->fan = gpu->corrected = gpu->uncorrected = NOT_SAID;
}

static void add_work(char **words, int count) {
    Gpu *gpu = gpu_at(words[1]);
    gpu->used = (unsigned long long)number(words, count, "used", 0) << 20;
    gpu->reserved = (unsigned long long)number(words, count, "reserved", 0) << 20;
    gpu->busy = number(words, count, "busy", NOT_SAID);
    gpu->membusy = number(words, count, "membusy", 0);
    gpu->temp = number(words, count, "temp", NOT_SAID);
    gpu->memtemp = number(words, count, "memtemp", NOT_SAID);
    gpu->power = number(words, count, "power", NOT_SAID);
    gpu->fan = number(words, count, "fan", NOT_SAID);
    gpu->corrected = number(words, count, "corrected", NOT_SAID);
    gpu->uncorrected = number(words, count, "uncorrected", NOT_SAID);
}

static void add_lane(char **words, int count) {
    Lane *lane = &gpu_at(words[1])->lane[atoi(words[2]) % MAX_LANES];
    if (!strcmp(words[3], "off")) lane->kind = LANE_OFF;
    else if (count < 5) wrong("lane");
    else if (!strcmp(words[3], "gpu")) {
        lane->kind = LANE_GPU;
        copy(lane->bus, sizeof lane->bus, gpu_at(words[4])->bus);
    } else {
        lane->kind = LANE_SWITCH;
        copy(lane->bus, sizeof lane->bus, words[4]);
    }
}

static void add_profile(char **words, int count) {
    Profile *profile = &gpu_at(words[1])->profile[atoi(words[2]) % MAX_PROFILES];
    const char *at = text(words, count, "at");
    profile->present = 1;
    profile->id = number(words, count, "id", 0);
    copy(profile->name, sizeof profile->name, text(words, count, "name"));
    profile->slices = number(words, count, "slices", 1);
    profile->count = number(words, count, "count", 1);
    profile->memory = number(words, count, "memory", 0);
    profile->sm = number(words, count, "sm", 0);
    profile->ce = number(words, count, "ce", 0);
    profile->dec = number(words, count, "dec", 0);
    profile->enc = number(words, count, "enc", 0);
    profile->jpeg = number(words, count, "jpeg", 0);
    profile->ofa = number(words, count, "ofa", 0);
    while (at && *at && profile->places < MAX_PLACES) {
        char *end;
        profile->place[profile->places].start = strtol(at, &end, 10);
        profile->place[profile->places++].size = number(words, count, "size", 1);
        at = *end ? end + 1 : end;
    }
}

static Instance *free_instance(Gpu *gpu) {
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (!gpu->instance[i].gpu) return &gpu->instance[i];
    return NULL;
}

static void add_instance(char **words, int count) {
    Gpu *gpu = gpu_at(words[1]);
    Instance *instance = free_instance(gpu);
    if (!instance) wrong("instance");
    instance->gpu = gpu;
    instance->id = number(words, count, "id", 0);
    instance->profile = number(words, count, "profile", 0);
    instance->placement.start = number(words, count, "start", 0);
    instance->placement.size = number(words, count, "size", 1);
    instance->has_ci = text(words, count, "ci") != NULL;
    instance->ci = number(words, count, "ci", 0);
    copy(instance->uuid, sizeof instance->uuid, text(words, count, "uuid"));
    if (instance->id >= next_instance) next_instance = instance->id + 1;
}

static void add_trouble(char **words, int count, int hang) {
    Trouble *trouble = &troubles[trouble_count++ % MAX_TROUBLES];
    copy(trouble->function, sizeof trouble->function, words[1]);
    trouble->gpu = *words[2] == '*' ? NOT_A_GPU : atoi(words[2]);
    trouble->hang = hang;
    trouble->code = count > 3 ? atoi(words[3]) : 0;
    trouble->after = count > 4 ? atoi(words[4]) : 0;
}

static void statement(char **words, int count) {
    const char *what = words[0];
    if (!strcmp(what, "driver") && count == 2) copy(driver, sizeof driver, words[1]);
    else if (!strcmp(what, "cuda") && count == 2) cuda = atoi(words[1]);
    else if (!strcmp(what, "gpu") && gpu_count < MAX_GPUS) add_gpu(words, count);
    else if (!strcmp(what, "lane") && count >= 4) add_lane(words, count);
    else if (!strcmp(what, "ancestor") && count == 4) {
        long a = gpu_at(words[1]) - gpus, b = gpu_at(words[2]) - gpus;
        ancestor[a][b] = ancestor[b][a] = atoi(words[3]);
    } else if (!strcmp(what, "p2p") && count == 4) {
        long a = gpu_at(words[1]) - gpus, b = gpu_at(words[2]) - gpus;
        peer_status[a][b] = peer_status[b][a] = atoi(words[3]);
    } else if (!strcmp(what, "remapped") && count == 3) gpu_at(words[1])->remap_failure = atoi(words[2]);
    else if (!strcmp(what, "work") && count > 1) add_work(words, count);
    else if (!strcmp(what, "profile") && count > 3) add_profile(words, count);
    else if (!strcmp(what, "instance") && count > 2) add_instance(words, count);
    else if (!strcmp(what, "fail") && count >= 4) add_trouble(words, count, 0);
    else if (!strcmp(what, "hang") && count == 3) add_trouble(words, count, 1);
    else wrong(what);
}

static void read_config(void) {
    const char *path = getenv("FAKE_NVML_CONFIG");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE], *words[MAX_WORDS];
    if (!file) wrong("$FAKE_NVML_CONFIG");
    gpu_count = trouble_count = 0;
    for (int a = 0; a < MAX_GPUS; a++)
        for (int b = 0; b < MAX_GPUS; b++) ancestor[a][b] = 50, peer_status[a][b] = 5;
    while (fgets(line, sizeof line, file)) {
        int count = split(line, words);
        if (count) statement(words, count);
    }
    fclose(file);
}

/* What was appended since the last look; a line without its end is left for the next. */
static void read_events(void) {
    const char *path = getenv("FAKE_NVML_EVENTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE], *words[MAX_WORDS];
    if (!file) return;
    fseek(file, events_read, SEEK_SET);
    while (fgets(line, sizeof line, file) && strchr(line, '\n')) {
        events_read = ftell(file);
        int count = split(line, words);
        if (count == 2 && !strcmp(words[0], "lost")) gpu_at(words[1])->lost = 1;
        else if (count >= 4 && !strcmp(words[0], "event")) {
            Event *event = &events[event_end++ % MAX_EVENTS];
            event->gpu = *words[1] == '-' ? NULL : gpu_at(words[1]);
            event->type = strtoull(words[2], NULL, 0);
            event->data = strtoull(words[3], NULL, 0);
            event->gi = count > 5 ? strtoul(words[4], NULL, 0) : 0xffffffffu;
            event->ci = count > 5 ? strtoul(words[5], NULL, 0) : 0xffffffffu;
        } else if (count) wrong(words[0]);
    }
    fclose(file);
}

/* --- troubles ----------------------------------------------------------------------------------------------------- */

static status trouble_of(const char *function, int gpu) {
    for (int i = 0; i < trouble_count; i++) {
        Trouble *trouble = &troubles[i];
        if (strcmp(trouble->function, function) || (trouble->gpu != NOT_A_GPU && trouble->gpu != gpu)) continue;
        if (trouble->hang)
            for (;;) sleep(1000);
        if (trouble->after-- <= 0) return trouble->code;
    }
    return SUCCESS;
}

/* A MIG device's handle is its Instance, which lies inside its Gpu. */
static Instance *as_instance(void *handle) {
    for (int i = 0; i < gpu_count; i++)
        for (int k = 0; k < MAX_INSTANCES; k++)
            if (handle == &gpus[i].instance[k]) return gpus[i].instance[k].gpu ? handle : NULL;
    return NULL;
}

static status enter_system(const char *function) {
    if (!initialised) return UNINITIALIZED;
    read_events();
    return trouble_of(function, NOT_A_GPU);
}

static status enter(const char *function, Gpu *gpu) {
    int known = gpu >= gpus && gpu < gpus + gpu_count && ((char *)gpu - (char *)gpus) % sizeof(Gpu) == 0;
    if (!initialised) return UNINITIALIZED;
    read_events();
    if (!known) return INVALID_ARGUMENT;
    status code = trouble_of(function, (int)(gpu - gpus));
    return code ? code : gpu->lost ? GPU_IS_LOST : SUCCESS;
}
#define ENTER_SYSTEM                                \
    do {                                            \
        status entered = enter_system(__func__);    \
        if (entered) return entered;                \
    } while (0)
#define ENTER(gpu)                                       \
    do {                                                 \
        status entered = enter(__func__, (Gpu *)(gpu));  \
        if (entered) return entered;                     \
    } while (0)

static status give(char *to, unsigned size, const char *from) {
    if (strlen(from) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

/* --- library and system ------------------------------------------------------------------------------------------- */

status nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!initialised) read_config();
    status code = trouble_of(__func__, NOT_A_GPU);
    if (!code) initialised++;
    return code;
}

status nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

status nvmlShutdown(void) {
    ENTER_SYSTEM;
    initialised--;
    return SUCCESS;
}

const char *nvmlErrorString(status code) {
    static char words[64];
    snprintf(words, sizeof words, "error %d of the fake", code);
    return words;
}

status nvmlSystemGetDriverVersion(char *to, unsigned size) {
    ENTER_SYSTEM;
    return give(to, size, driver);
}

status nvmlSystemGetCudaDriverVersion_v2(int *to) {
    ENTER_SYSTEM;
    *to = cuda;
    return SUCCESS;
}

status nvmlDeviceGetCount_v2(unsigned *to) {
    ENTER_SYSTEM;
    *to = gpu_count;
    return SUCCESS;
}

status nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) {
    if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
    ENTER(&gpus[index]);
    *to = &gpus[index];
    return SUCCESS;
}

status nvmlDeviceGetHandleByUUID(const char *uuid, void **to) {
    for (int i = 0; i < gpu_count; i++) {
        if (!strcmp(gpus[i].uuid, uuid)) {
            ENTER(&gpus[i]);
            *to = &gpus[i];
            return SUCCESS;
        }
        for (int k = 0; k < MAX_INSTANCES; k++) {
            Instance *mig = &gpus[i].instance[k];
            if (!gpus[i].mig || !mig->gpu || !mig->has_ci || strcmp(mig->uuid, uuid)) continue;
            ENTER(&gpus[i]);
            *to = mig;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* --- one GPU ------------------------------------------------------------------------------------------------------ */

status nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
    Instance *mig = as_instance(device);
    ENTER(mig ? (void *)mig->gpu : device);
    return give(to, size, mig ? mig->uuid : ((Gpu *)device)->uuid);
}

status nvmlDeviceGetName(Gpu *gpu, char *to, unsigned size) {
    ENTER(gpu);
    return give(to, size, gpu->name);
}

status nvmlDeviceGetSerial(Gpu *gpu, char *to, unsigned size) {
    ENTER(gpu);
    return *gpu->serial ? give(to, size, gpu->serial) : NOT_SUPPORTED;
}

#define NUMBER_OF(function, type, member) \
    status function(Gpu *gpu, type *to) { \
        ENTER(gpu);                       \
        *to = gpu->member;                \
        return SUCCESS;                   \
    }
NUMBER_OF(nvmlDeviceGetMinorNumber, unsigned, minor)
NUMBER_OF(nvmlDeviceGetBrand, unsigned, brand)
NUMBER_OF(nvmlDeviceGetArchitecture, unsigned, arch)

typedef struct { unsigned long long total, free, used; } Memory;
status nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *to) {
    ENTER(gpu);
    to->total = gpu->memory;
    to->used = gpu->used + gpu->reserved;
    to->free = to->total - to->used;
    return SUCCESS;
}

/* Of drivers since 510: what the driver takes for itself is not in use. */
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
status nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *to) {
    ENTER(gpu);
    if (to->version != (sizeof *to | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    to->total = gpu->memory;
    to->reserved = gpu->reserved;
    to->used = gpu->used;
    to->free = to->total - to->used - to->reserved;
    return SUCCESS;
}

/* --- one GPU at work ------------------------------------------------------------------------------------------------ */

typedef struct { unsigned gpu, memory; } Utilization;
status nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *to) {
    ENTER(gpu);
    if (gpu->busy == NOT_SAID || gpu->mig) return NOT_SUPPORTED;
    *to = (Utilization){(unsigned)gpu->busy, (unsigned)gpu->membusy};
    return SUCCESS;
}

status nvmlDeviceGetTemperature(Gpu *gpu, unsigned sensor, unsigned *to) {
    ENTER(gpu);
    if (sensor) return INVALID_ARGUMENT;
    if (gpu->temp == NOT_SAID) return NOT_SUPPORTED;
    *to = (unsigned)gpu->temp;
    return SUCCESS;
}

#define READING_OF(function, type, member)                  \
    status function(Gpu *gpu, type *to) {                   \
        ENTER(gpu);                                         \
        if (gpu->member == NOT_SAID) return NOT_SUPPORTED;  \
        *to = (type)gpu->member;                            \
        return SUCCESS;                                     \
    }
READING_OF(nvmlDeviceGetPowerUsage, unsigned, power)
READING_OF(nvmlDeviceGetFanSpeed, unsigned, fan)

status nvmlDeviceGetTotalEccErrors(Gpu *gpu, unsigned type, unsigned counter, unsigned long long *to) {
    ENTER(gpu);
    if (type > 1 || counter) return INVALID_ARGUMENT;
    long count = type ? gpu->uncorrected : gpu->corrected;
    if (count == NOT_SAID) return NOT_SUPPORTED;
    *to = (unsigned long long)count;
    return SUCCESS;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    status code;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
} FieldValue;
enum { FIELD_MEMORY_TEMPERATURE = 82 };

/* Each field has a code of its own. */
status nvmlDeviceGetFieldValues(Gpu *gpu, int count, FieldValue *values) {
    ENTER(gpu);
    for (int i = 0; i < count; i++) {
        int known = values[i].field == FIELD_MEMORY_TEMPERATURE && gpu->memtemp != NOT_SAID;
        values[i].code = known ? SUCCESS : NOT_SUPPORTED;
        values[i].type = 1;
        values[i].value.ull = 0;
        if (known) values[i].value.u = (unsigned)gpu->memtemp;
    }
    return SUCCESS;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

static status give_pci(Pci *to, const char *bus) {
    memset(to, 0, sizeof *to);
    sscanf(bus, "%x:%x:%x", &to->domain, &to->bus, &to->device);
    return give(to->bus_id, sizeof to->bus_id, bus);
}

status nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *to) {
    ENTER(gpu);
    return give_pci(to, gpu->bus);
}

status nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    ENTER(gpu);
    *major = gpu->major;
    *minor = gpu->minor_cc;
    return SUCCESS;
}

status nvmlDeviceGetMemoryAffinity(Gpu *gpu, unsigned size, unsigned long *nodes, unsigned scope) {
    (void)scope;
    ENTER(gpu);
    if (gpu->numa < 0 || !size) return NOT_SUPPORTED;
    memset(nodes, 0, size * sizeof *nodes);
    nodes[0] = 1ul << gpu->numa;
    return SUCCESS;
}

status nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    ENTER(gpu);
    *corrected = *uncorrected = *pending = 0;
    *failure = gpu->remap_failure;
    return SUCCESS;
}

typedef struct { unsigned char cluster[16]; status status; unsigned clique, state; } FabricInfo;
typedef struct { unsigned version; FabricInfo info; unsigned health; } FabricInfoV2;

static status give_fabric(Gpu *gpu, FabricInfo *to) {
    const char *digit = gpu->cluster;
    if (!*digit) return NOT_SUPPORTED;
    for (int i = 0; i < 16; i++) {
        while (*digit == '-') digit++;
        if (sscanf(digit, "%2hhx", &to->cluster[i]) != 1) wrong(gpu->cluster);
        digit += 2;
    }
    to->status = SUCCESS;
    to->clique = gpu->clique;
    to->state = gpu->fabric;
    return SUCCESS;
}

status nvmlDeviceGetGpuFabricInfo(Gpu *gpu, FabricInfo *to) {
    ENTER(gpu);
    return give_fabric(gpu, to);
}

status nvmlDeviceGetGpuFabricInfoV(Gpu *gpu, FabricInfoV2 *to) {
    ENTER(gpu);
    if (to->version != (2u << 24 | sizeof *to)) return ARGUMENT_VERSION_MISMATCH;
    return give_fabric(gpu, &to->info);
}

/* --- topology ----------------------------------------------------------------------------------------------------- */

status nvmlDeviceGetTopologyCommonAncestor(Gpu *a, Gpu *b, unsigned *to) {
    ENTER(a);
    ENTER(b);
    *to = ancestor[a - gpus][b - gpus];
    return SUCCESS;
}

status nvmlDeviceGetP2PStatus(Gpu *a, Gpu *b, unsigned index, unsigned *to) {
    (void)index;
    ENTER(a);
    ENTER(b);
    *to = peer_status[a - gpus][b - gpus];
    return SUCCESS;
}

static status lane_at(const char *function, Gpu *gpu, unsigned link, Lane **to) {
    status code = enter(function, gpu);
    if (code) return code;
    if (link >= MAX_LANES || gpu->lane[link].kind == LANE_NONE) return link ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *to = &gpu->lane[link];
    return SUCCESS;
}

status nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *to) {
    Lane *lane;
    status code = lane_at(__func__, gpu, link, &lane);
    if (!code) *to = lane->kind != LANE_OFF;
    return code;
}

status nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, Pci *to) {
    Lane *lane;
    status code = lane_at(__func__, gpu, link, &lane);
    return code ? code : give_pci(to, lane->bus);
}

status nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *gpu, unsigned link, unsigned *to) {
    Lane *lane;
    status code = lane_at(__func__, gpu, link, &lane);
    if (!code) *to = lane->kind == LANE_SWITCH ? 2 : 0;
    return code;
}

/* --- MIG ---------------------------------------------------------------------------------------------------------- */

status nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    ENTER(gpu);
    if (!gpu->can_mig) return NOT_SUPPORTED;
    *current = gpu->mig, *pending = gpu->pending;
    return SUCCESS;
}

status nvmlDeviceSetMigMode(Gpu *gpu, unsigned mode, status *activation) {
    ENTER(gpu);
    if (!gpu->can_mig) return NOT_SUPPORTED;
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instance[i].gpu) return IN_USE;
    if (gpu->pid) return IN_USE;
    gpu->pending = mode;
    *activation = SUCCESS;
    if (gpu->mig == mode) return SUCCESS;
    if (gpu->reset >= 0) *activation = gpu->watched && open_sets ? IN_USE : (status)gpu->reset;
    if (*activation == SUCCESS) gpu->mig = mode;
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute;
} Process;

status nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *to) {
    ENTER(gpu);
    unsigned room = *count;
    *count = gpu->pid ? 1 : 0;
    if (room < *count) return INSUFFICIENT_SIZE;
    if (*count) *to = (Process){(unsigned)gpu->pid, 0, 0xffffffffu, 0xffffffffu};
    return SUCCESS;
}

status nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *to) {
    ENTER(gpu);
    (void)to;
    *count = 0;
    return SUCCESS;
}

typedef struct {
    unsigned version, id, p2p, slices, count, sm, ce, dec, enc, jpeg, ofa;
    unsigned long long memory;
    char name[96];
} ProfileInfo;

status nvmlDeviceGetGpuInstanceProfileInfoV(Gpu *gpu, unsigned index, ProfileInfo *to) {
    ENTER(gpu);
    if (!gpu->can_mig || index >= MAX_PROFILES || !gpu->profile[index].present || (gpu->shy && !gpu->mig)) return NOT_SUPPORTED;
    Profile *found = &gpu->profile[index];
    to->id = found->id, to->p2p = 0, to->slices = found->slices, to->count = found->count, to->sm = found->sm;
    to->ce = found->ce, to->dec = found->dec, to->enc = found->enc, to->jpeg = found->jpeg, to->ofa = found->ofa;
    to->memory = found->memory;
    return give(to->name, sizeof to->name, found->name);
}

typedef struct {
    unsigned id, p2p, slices, count, sm, ce, dec, enc, jpeg, ofa;
    unsigned long long memory;
} OldProfileInfo;

/* Of drivers before 510: without the name. */
status nvmlDeviceGetGpuInstanceProfileInfo(Gpu *gpu, unsigned index, OldProfileInfo *to) {
    ENTER(gpu);
    if (!gpu->can_mig || index >= MAX_PROFILES || !gpu->profile[index].present || (gpu->shy && !gpu->mig)) return NOT_SUPPORTED;
    Profile *found = &gpu->profile[index];
    *to = (OldProfileInfo){found->id, 0, found->slices, found->count, found->sm, found->ce,
                           found->dec, found->enc, found->jpeg, found->ofa, found->memory};
    return SUCCESS;
}

static Profile *profile_of(Gpu *gpu, unsigned id) {
    for (int i = 0; i < MAX_PROFILES; i++)
        if (gpu->profile[i].present && gpu->profile[i].id == id) return &gpu->profile[i];
    return NULL;
}

status nvmlDeviceGetGpuInstancePossiblePlacements_v2(Gpu *gpu, unsigned id, Placement *to, unsigned *count) {
    ENTER(gpu);
    Profile *profile = profile_of(gpu, id);
    if (!profile) return NOT_SUPPORTED;
    if (to) memcpy(to, profile->place, profile->places * sizeof *to);
    *count = profile->places;
    return SUCCESS;
}

status nvmlDeviceGetGpuInstances(Gpu *gpu, unsigned id, void **to, unsigned *count) {
    ENTER(gpu);
    if (!gpu->mig) return NOT_SUPPORTED;
    *count = 0;
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instance[i].gpu && gpu->instance[i].profile == id) to[(*count)++] = &gpu->instance[i];
    return SUCCESS;
}

status nvmlDeviceGetGpuInstanceById(Gpu *gpu, unsigned id, void **to) {
    ENTER(gpu);
    for (int i = 0; i < MAX_INSTANCES; i++) {
        if (gpu->instance[i].gpu && gpu->instance[i].id == id) {
            *to = &gpu->instance[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

typedef struct {
    Gpu *device;
    unsigned id, profile;
    Placement placement;
} InstanceInfo;

status nvmlGpuInstanceGetInfo(Instance *instance, InstanceInfo *to) {
    if (!as_instance(instance)) return INVALID_ARGUMENT;
    ENTER(instance->gpu);
    *to = (InstanceInfo){instance->gpu, instance->id, instance->profile, instance->placement};
    return SUCCESS;
}

static int overlaps(Gpu *gpu, Placement wanted) {
    for (int i = 0; i < MAX_INSTANCES; i++) {
        Placement taken = gpu->instance[i].placement;
        if (gpu->instance[i].gpu && wanted.start < taken.start + taken.size && taken.start < wanted.start + wanted.size) return 1;
    }
    return 0;
}

static status create(Gpu *gpu, unsigned id, const Placement *wanted, Instance **to) {
    Profile *profile = profile_of(gpu, id);
    Instance *instance = free_instance(gpu);
    if (!gpu->mig || !profile) return NOT_SUPPORTED;
    for (unsigned i = 0; i < profile->places && instance; i++) {
        Placement place = profile->place[i];
        if ((wanted && wanted->start != place.start) || overlaps(gpu, place)) continue;
        memset(instance, 0, sizeof *instance);
        instance->gpu = gpu;
        instance->id = next_instance++;
        instance->profile = id;
        instance->placement = place;
        *to = instance;
        return SUCCESS;
    }
    return INSUFFICIENT_RESOURCES;
}

status nvmlDeviceCreateGpuInstance(Gpu *gpu, unsigned id, Instance **to) {
    ENTER(gpu);
    return create(gpu, id, NULL, to);
}

status nvmlDeviceCreateGpuInstanceWithPlacement(Gpu *gpu, unsigned id, const Placement *place, Instance **to) {
    ENTER(gpu);
    return create(gpu, id, place, to);
}

status nvmlGpuInstanceDestroy(Instance *instance) {
    if (!as_instance(instance)) return INVALID_ARGUMENT;
    ENTER(instance->gpu);
    if (instance->has_ci) return IN_USE;
    instance->gpu = NULL;
    return SUCCESS;
}

typedef struct {
    unsigned version, id, slices, count, sm, ce, dec, enc, jpeg, ofa;
    char name[96];
} ComputeProfileInfo;

typedef struct {
    unsigned id, slices, count, sm, ce, dec, enc, jpeg, ofa;
} OldComputeProfileInfo;

/* Only the compute instance that spans its GPU instance: its number is that of the slices, as NVML numbers them. */
static const unsigned compute_slices[] = {1, 2, 3, 4, 7, 8, 6};
enum { COMPUTE_PROFILES = sizeof compute_slices / sizeof *compute_slices };

static Profile *spanning(Instance *instance, unsigned index) {
    Profile *profile = profile_of(instance->gpu, instance->profile);
    return index < COMPUTE_PROFILES && profile && compute_slices[index] == profile->slices ? profile : NULL;
}

status nvmlGpuInstanceGetComputeInstanceProfileInfoV(Instance *instance, unsigned index, unsigned engine, ComputeProfileInfo *to) {
    if (!as_instance(instance) || engine) return INVALID_ARGUMENT;
    ENTER(instance->gpu);
    Profile *profile = spanning(instance, index);
    if (!profile) return NOT_SUPPORTED;
    to->id = index, to->slices = profile->slices, to->count = 1, to->sm = profile->sm;
    to->ce = profile->ce, to->dec = profile->dec, to->enc = profile->enc, to->jpeg = profile->jpeg, to->ofa = profile->ofa;
    return give(to->name, sizeof to->name, profile->name);
}

/* Of drivers before 510: without the name. */
status nvmlGpuInstanceGetComputeInstanceProfileInfo(Instance *instance, unsigned index, unsigned engine, OldComputeProfileInfo *to) {
    if (!as_instance(instance) || engine) return INVALID_ARGUMENT;
    ENTER(instance->gpu);
    Profile *profile = spanning(instance, index);
    if (!profile) return NOT_SUPPORTED;
    *to = (OldComputeProfileInfo){index, profile->slices, 1, profile->sm, profile->ce, profile->dec, profile->enc, profile->jpeg, profile->ofa};
    return SUCCESS;
}

/* A compute instance's handle is that of its GPU instance: there is never more than one. */
status nvmlGpuInstanceCreateComputeInstance(Instance *instance, unsigned id, Instance **to) {
    (void)id;
    if (!as_instance(instance)) return INVALID_ARGUMENT;
    ENTER(instance->gpu);
    if (instance->has_ci) return INSUFFICIENT_RESOURCES;
    instance->has_ci = 1;
    instance->ci = 0;
    snprintf(instance->uuid, sizeof instance->uuid, "MIG-%.60s-%u", instance->gpu->uuid, instance->id);
    *to = instance;
    return SUCCESS;
}

status nvmlGpuInstanceGetComputeInstanceById(Instance *instance, unsigned id, Instance **to) {
    if (!as_instance(instance)) return INVALID_ARGUMENT;
    ENTER(instance->gpu);
    if (!instance->has_ci || instance->ci != id) return NOT_FOUND;
    *to = instance;
    return SUCCESS;
}

typedef struct {
    Gpu *device;
    Instance *instance;
    unsigned id, profile;
    Placement placement;
} ComputeInfo;

status nvmlComputeInstanceGetInfo_v2(Instance *instance, ComputeInfo *to) {
    if (!as_instance(instance) || !instance->has_ci) return INVALID_ARGUMENT;
    ENTER(instance->gpu);
    unsigned profile = 0;
    while (profile < COMPUTE_PROFILES && !spanning(instance, profile)) profile++;
    *to = (ComputeInfo){instance->gpu, instance, instance->ci, profile, {0, instance->placement.size}};
    return SUCCESS;
}

status nvmlComputeInstanceDestroy(Instance *instance) {
    if (!as_instance(instance) || !instance->has_ci) return INVALID_ARGUMENT;
    ENTER(instance->gpu);
    instance->has_ci = 0;
    return SUCCESS;
}

/* MIG devices exist where there is a compute instance; the index goes up to the number of slices, with gaps. */
status nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *to) {
    ENTER(gpu);
    *to = gpu->mig ? 7 : 0;
    return SUCCESS;
}

status nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, void **to) {
    ENTER(gpu);
    if (!gpu->mig) return NOT_SUPPORTED;
    if (index >= MAX_INSTANCES || !gpu->instance[index].gpu || !gpu->instance[index].has_ci) return NOT_FOUND;
    *to = &gpu->instance[index];
    return SUCCESS;
}

status nvmlDeviceGetGpuInstanceId(Instance *device, unsigned *to) {
    if (!as_instance(device)) return NOT_FOUND;
    ENTER(device->gpu);
    *to = device->id;
    return SUCCESS;
}

status nvmlDeviceGetComputeInstanceId(Instance *device, unsigned *to) {
    if (!as_instance(device)) return NOT_FOUND;
    ENTER(device->gpu);
    *to = device->ci;
    return SUCCESS;
}

status nvmlDeviceIsMigDeviceHandle(void *device, unsigned *to) {
    ENTER_SYSTEM;
    *to = as_instance(device) != NULL;
    return SUCCESS;
}

status nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Instance *device, Gpu **to) {
    if (!as_instance(device)) return NOT_FOUND;
    ENTER(device->gpu);
    *to = device->gpu;
    return SUCCESS;
}

typedef struct {
    unsigned sm, ce, dec, enc, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory; /* MiB */
} Attributes;

status nvmlDeviceGetAttributes_v2(Instance *device, Attributes *to) {
    if (!as_instance(device)) return NOT_SUPPORTED;
    ENTER(device->gpu);
    Profile *of = profile_of(device->gpu, device->profile);
    if (!of) return UNKNOWN;
    *to = (Attributes){of->sm, of->ce, of->dec, of->enc, of->jpeg, of->ofa, of->slices, of->slices, of->memory};
    return SUCCESS;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

status nvmlEventSetCreate(void **to) {
    static int only;
    ENTER_SYSTEM;
    for (int i = 0; i < gpu_count; i++) gpus[i].watched = 0;
    open_sets++;
    *to = &only;
    return SUCCESS;
}

status nvmlEventSetFree(void *set) {
    (void)set;
    ENTER_SYSTEM;
    open_sets--;
    return SUCCESS;
}

status nvmlDeviceGetSupportedEventTypes(Gpu *gpu, unsigned long long *to) {
    ENTER(gpu);
    *to = 0x1f;
    return SUCCESS;
}

status nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, void *set) {
    (void)set;
    ENTER(gpu);
    gpu->watched = types;
    return SUCCESS;
}

typedef struct {
    Gpu *device;
    unsigned long long type, data;
    unsigned gi, ci;
} EventData;

status nvmlEventSetWait_v2(void *set, EventData *to, unsigned milliseconds) {
    (void)set;
    for (unsigned waited = 0;; waited += 5) {
        ENTER_SYSTEM;
        while (event_first < event_end) {
            Event *event = &events[event_first++ % MAX_EVENTS];
            if (event->gpu && !(event->gpu->watched & event->type)) continue;
            *to = (EventData){event->gpu, event->type, event->data, event->gi, event->ci};
            return SUCCESS;
        }
        if (waited >= milliseconds) return TIMEOUT;
        usleep(5000);
    }
}
