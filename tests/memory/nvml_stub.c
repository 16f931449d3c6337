/* A stand-in for NVIDIA's driver library. Every answer is read, at each call, from the scene that
 * NVML_STUB_SCENE names: a text file, read from the top, in which later lines amend earlier ones.
 * Sizes are bytes, or end in M or G. Devices are counted from 0 in the order of their lines.
 *
 *   gpu UUID NAME USED TOTAL         a GPU
 *   mig GPU UUID GI CI USED TOTAL    an instance that splits the device GPU, which is in MIG mode
 *   split GPU                        MIG mode without an instance
 *   used DEVICE BYTES                another reading of a device's memory
 *   process DEVICE PID BYTES         a process on a device; -1 bytes: not available; 0: it left
 *   gauges DEVICE GPU MEM TEMP POWER percent, percent, degrees, milliwatts; -1: not supported
 *   fail FUNCTION STATUS             what a function returns (3 not supported, 13 no such function)
 *   status STATUS                    what every query returns (0 success, 15 GPU is lost)
 *   clock readings | seconds         what `at` counts: readings of the first device's memory, or
 *                                    the seconds that the file NVML_STUB_CLOCK holds; where it is
 *                                    not set, seconds since the first call
 *   at TIME                          the rest of the scene holds from then on
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
#define MOST 32

typedef struct {
  char uuid[96], name[96];
  int parent, split, gi, ci, gauge[4];
  unsigned long long used, total;
} Device;
typedef struct { int device; unsigned pid; long long bytes; } Process;
typedef struct { char function[96]; int status; } Failure;
typedef struct {
  int status, devices, processes, failures;
  Device device[MOST];
  Process process[MOST];
  Failure failure[MOST];
} Scene;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Info;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, sensor; int temperature; } Temperature;

static int readings;

static double seconds(void) {
  static double origin = -1;
  double now = 0;
  const char *path = getenv("NVML_STUB_CLOCK");
  if (path) {
    FILE *file = fopen(path, "r");
    if (file) {
      if (fscanf(file, "%lf", &now) != 1) now = 0;
      fclose(file);
    }
    return now;
  }
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  now = (double)time.tv_sec + (double)time.tv_nsec / 1e9;
  if (origin < 0) origin = now;
  return now - origin;
}

static long long size(const char *text) {
  char *end;
  double number = strtod(text, &end);
  return (long long)(number * (*end == 'G' ? 1 << 30 : *end == 'M' ? 1 << 20 : 1));
}

static void set_process(Scene *s, int device, unsigned pid, long long bytes) {
  int i = 0;
  while (i < s->processes && (s->process[i].device != device || s->process[i].pid != pid)) i++;
  s->process[i] = (Process){device, pid, bytes};
  if (i == s->processes) s->processes++;
  if (bytes == 0) s->process[i] = s->process[--s->processes];
}

static Scene load(void) {
  Scene s = {0};
  char line[512], a[96], b[96], c[96], d[96];
  int by_seconds = 0, device, x, y;
  int g[4];
  unsigned pid;
  double time;
  FILE *file = fopen(getenv("NVML_STUB_SCENE"), "r");
  while (file && fgets(line, sizeof line, file)) {
    Device *new = &s.device[s.devices];
    if (sscanf(line, "gpu %95s %95s %95s %95s", a, b, c, d) == 4) {
      *new = (Device){.parent = -1, .gauge = {-1, -1, -1, -1}, .used = size(c), .total = size(d)};
      strcpy(new->uuid, a);
      strcpy(new->name, b);
      s.devices++;
    } else if (sscanf(line, "mig %d %95s %d %d %95s %95s", &device, a, &x, &y, c, d) == 6) {
      *new = (Device){.parent = device, .gi = x, .ci = y, .used = size(c), .total = size(d)};
      strcpy(new->uuid, a);
      strcpy(new->name, "MIG");
      s.device[device].split = 1;
      s.devices++;
    } else if (sscanf(line, "split %d", &device) == 1) {
      s.device[device].split = 1;
    } else if (sscanf(line, "used %d %95s", &device, a) == 2) {
      s.device[device].used = size(a);
    } else if (sscanf(line, "process %d %u %95s", &device, &pid, a) == 3) {
      set_process(&s, device, pid, size(a));
    } else if (sscanf(line, "gauges %d %d %d %d %d", &device, g, g + 1, g + 2, g + 3) == 5) {
      memcpy(s.device[device].gauge, g, sizeof g);
    } else if (sscanf(line, "fail %95s %d", s.failure[s.failures].function, &x) == 2) {
      s.failure[s.failures++].status = x;
    } else if (sscanf(line, "status %d", &x) == 1) {
      s.status = x;
    } else if (sscanf(line, "clock %95s", a) == 1) {
      by_seconds = !strcmp(a, "seconds");
    } else if (sscanf(line, "at %lf", &time) == 1) {
      if ((by_seconds ? seconds() : readings) < time) break;
    } else if (strspn(line, " \n") != strlen(line) && line[0] != '#') {
      fprintf(stderr, "nvml_stub: not a line of a scene: %s", line);
      abort();
    }
  }
  if (file) fclose(file);
  return s;
}

static int answer(const Scene *s, const char *function) {
  if (s->status) return s->status;
  for (int i = s->failures; i-- > 0;)
    if (!strcmp(s->failure[i].function, function)) return s->failure[i].status;
  return SUCCESS;
}

/* A handle is the device's index plus one, as a pointer. */
static int index_of(void *handle) { return (int)((char *)handle - (char *)0) - 1; }
static void *handle_of(int device) { return (char *)0 + device + 1; }

static int nth_below(const Scene *s, int parent, unsigned nth) {
  for (int i = 0; i < s->devices; i++)
    if (s->device[i].parent == parent && nth-- == 0) return i;
  return -1;
}

/* A gauge of a whole card: a slice of it has none, as of NVIDIA's driver. */
static int gauge(void *handle, const char *function, int which, int *value) {
  Scene s = load();
  Device *d = &s.device[index_of(handle)];
  int status = answer(&s, function);
  if (status) return status;
  if (d->parent >= 0) return INVALID_ARGUMENT;
  *value = d->gauge[which];
  return *value < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return load().status; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int status) {
  return status == 15 ? "GPU is lost" : status == NOT_SUPPORTED ? "Not Supported" : "stub error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  Scene s = load();
  *count = 0;
  while (nth_below(&s, -1, *count) >= 0) ++*count;
  return answer(&s, __func__);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  Scene s = load();
  *device = handle_of(nth_below(&s, -1, index));
  return answer(&s, __func__);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  Scene s = load();
  for (int i = 0; i < s.devices; i++)
    if (!strcmp(s.device[i].uuid, uuid)) {
      *device = handle_of(i);
      return answer(&s, __func__);
    }
  return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  Scene s = load();
  snprintf(uuid, length, "%s", s.device[index_of(device)].uuid);
  return answer(&s, __func__);
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  Scene s = load();
  snprintf(name, length, "%s", s.device[index_of(device)].name);
  return answer(&s, __func__);
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
  Scene s = load();
  *current = *pending = (unsigned)s.device[index_of(device)].split;
  return answer(&s, __func__);
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
  Scene s = load();
  *count = s.device[index_of(device)].split ? 7 : 0;
  return answer(&s, __func__);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance) {
  Scene s = load();
  int found = nth_below(&s, index_of(device), index);
  *instance = handle_of(found);
  return found < 0 ? NOT_FOUND : answer(&s, __func__);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **device) {
  Scene s = load();
  *device = handle_of(s.device[index_of(instance)].parent);
  return answer(&s, __func__);
}

int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
  Scene s = load();
  *id = (unsigned)s.device[index_of(device)].gi;
  return answer(&s, __func__);
}

int nvmlDeviceGetComputeInstanceId(void *device, unsigned *id) {
  Scene s = load();
  *id = (unsigned)s.device[index_of(device)].ci;
  return answer(&s, __func__);
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  static void *first;
  if (!first) first = device;
  if (device == first) readings++;
  Scene s = load();
  Device d = s.device[index_of(device)];
  memory->total = d.total;
  memory->used = d.used;
  memory->free = d.total - d.used;
  return answer(&s, __func__);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Info *infos) {
  Scene s = load();
  unsigned room = *count, found = 0;
  int status = answer(&s, __func__);
  if (status) return status;
  for (int i = 0; i < s.processes; i++) {
    if (s.process[i].device != index_of(device)) continue;
    if (infos && found < room)
      infos[found] = (Info){s.process[i].pid, (unsigned long long)s.process[i].bytes, 0, 0};
    found++;
  }
  *count = found;
  return found > room || (found && !infos) ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
  int gpu = 0, memory = 0, status = gauge(device, __func__, 0, &gpu);
  if (!status) status = gauge(device, __func__, 1, &memory);
  *rates = (Utilization){(unsigned)gpu, (unsigned)memory};
  return status;
}

int nvmlDeviceGetTemperatureV(void *device, Temperature *reading) {
  return gauge(device, __func__, 2, &reading->temperature);
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
  (void)sensor;
  return gauge(device, __func__, 2, (int *)celsius);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
  return gauge(device, __func__, 3, (int *)milliwatts);
}
