/* A stand-in for NVIDIA's driver library: every answer is read, at each call, from the text file
 * that NVML_STUB_STATE names, so that a test can change it while the probe lives.
 *
 *   status S                    what every query returns (0 success, 15 GPU is lost)
 *   processes S                 what the query for processes returns (3 not supported)
 *   gpu UUID NAME USED TOTAL    one for each GPU
 *   process GPU PID BYTES       -1 bytes: not available
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
#define MOST 16

typedef struct { char uuid[96], name[96]; unsigned long long used, total; } Gpu;
typedef struct { int gpu; unsigned pid; long long bytes; } Process;
typedef struct { int status, process_status, gpus, processes; Gpu gpu[MOST]; Process process[MOST]; } State;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Info;

static State load(void) {
  State s = {0};
  char line[512];
  FILE *file = fopen(getenv("NVML_STUB_STATE"), "r");
  while (file && fgets(line, sizeof line, file)) {
    Gpu *g = &s.gpu[s.gpus];
    Process *p = &s.process[s.processes];
    if (sscanf(line, "status %d", &s.status) == 1) continue;
    if (sscanf(line, "processes %d", &s.process_status) == 1) continue;
    if (sscanf(line, "gpu %95s %95s %llu %llu", g->uuid, g->name, &g->used, &g->total) == 4) s.gpus++;
    if (sscanf(line, "process %d %u %lld", &p->gpu, &p->pid, &p->bytes) == 3) s.processes++;
  }
  if (file) fclose(file);
  return s;
}

/* A handle is the GPU's index plus one, as a pointer. */
static int gpu_of(void *handle) { return (int)((char *)handle - (char *)0) - 1; }
static void *handle_of(int gpu) { return (char *)0 + gpu + 1; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return load().status; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) { return status == 15 ? "GPU is lost" : "stub error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  State s = load();
  *count = (unsigned)s.gpus;
  return s.status;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = handle_of((int)index);
  return load().status;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  State s = load();
  for (int i = 0; i < s.gpus; i++)
    if (!strcmp(s.gpu[i].uuid, uuid)) { *device = handle_of(i); return s.status; }
  return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  State s = load();
  snprintf(uuid, length, "%s", s.gpu[gpu_of(device)].uuid);
  return s.status;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  State s = load();
  snprintf(name, length, "%s", s.gpu[gpu_of(device)].name);
  return s.status;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  State s = load();
  Gpu g = s.gpu[gpu_of(device)];
  memory->total = g.total;
  memory->used = g.used;
  memory->free = g.total - g.used;
  return s.status;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Info *infos) {
  State s = load();
  unsigned room = *count, found = 0;
  if (s.status || s.process_status) return s.status ? s.status : s.process_status;
  for (int i = 0; i < s.processes; i++) {
    if (s.process[i].gpu != gpu_of(device)) continue;
    if (infos && found < room)
      infos[found] = (Info){s.process[i].pid, (unsigned long long)s.process[i].bytes, 0, 0};
    found++;
  }
  *count = found;
  return found > room || (found && !infos) ? INSUFFICIENT_SIZE : SUCCESS;
}
