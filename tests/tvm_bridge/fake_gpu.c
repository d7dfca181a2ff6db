/* A CUDA runtime and a driver over the memory of the host: what TVM's CUDA library calls. Code that is loaded, launches, captures
   and replays go to one function of the test; the driver's structures are laid out as in its header. */
#include <stdlib.h>
#include <string.h>

typedef int (*hook_t)(int kind, const void *a, const void *b, void *c);
enum { LOAD, LAUNCH, BEGIN, END, REPLAY };
static int nothing(int kind, const void *a, const void *b, void *c) { return 0; }
static hook_t hook = nothing;
void fake_gpu_hook(hook_t given) { hook = given; }

/* the runtime */
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1024;
  return device ? 101 : 0;
}
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return device ? 101 : 0; }
int cudaGetDeviceProperties(void *properties, int device) { return 0; }
int cudaMalloc(void **p, size_t n) { *p = aligned_alloc(256, (n + 255) / 256 * 256); return *p ? 0 : 2; }
int cudaMallocHost(void **p, size_t n) { return cudaMalloc(p, n); }
int cudaFree(void *p) { free(p); return 0; }
int cudaFreeHost(void *p) { free(p); return 0; }
int cudaMemGetInfo(size_t *left, size_t *all) { *left = *all = (size_t)1 << 34; return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream) { memmove(to, from, n); return 0; }
int cudaMemcpyPeerAsync(void *to, int d, const void *from, int s, size_t n, void *stream) { memmove(to, from, n); return 0; }
int cudaStreamCreate(void **s) { *s = malloc(1); return 0; }
int cudaStreamCreateWithFlags(void **s, unsigned flags) { return cudaStreamCreate(s); }
int cudaStreamDestroy(void *s) { free(s); return 0; }
int cudaStreamSynchronize(void *s) { return 0; }
int cudaStreamWaitEvent(void *s, void *e, unsigned flags) { return 0; }
int cudaEventCreate(void **e) { *e = malloc(1); return 0; }
int cudaEventDestroy(void *e) { free(e); return 0; }
int cudaEventRecord(void *e, void *s) { return 0; }
int cudaEventSynchronize(void *e) { return 0; }
int cudaEventElapsedTime(float *ms, void *a, void *b) { *ms = 1; return 0; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
const char *cudaGetErrorName(int e) { return "cudaErrorFake"; }
const char *cudaGetErrorString(int e) { return "an error of the fake GPU"; }
int cudaStreamBeginCapture(void *s, int mode) { return hook(BEGIN, 0, 0, 0); }
int cudaStreamEndCapture(void *s, void **graph) { *graph = 0; return hook(END, 0, 0, graph); }
int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) { *exec = graph; return 0; }
int cudaGraphLaunch(void *exec, void *stream) { return hook(REPLAY, exec, 0, 0); }
int cudaGraphDestroy(void *graph) { return 0; }
int cudaGraphExecDestroy(void *exec) { return 0; }

/* the driver */
int cuDeviceGetName(char *name, int n, int device) { strncpy(name, "fake", n); return 0; }
int cuGetErrorName(int e, const char **name) { *name = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int e, const char **text) { *text = "an error of the fake GPU"; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)image; return hook(LOAD, image, 0, 0); }
int cuModuleUnload(void *module) { return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = strdup(name); return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuLaunchKernelEx(const void *config, void *function, void **params, void **extra) {
  return hook(LAUNCH, function, config, params);
}

/* what was encoded, readable */
typedef struct { const void *address; int type, rank, swizzle; unsigned sizes[5], strides[4], box[5]; } map_t;
int cuTensorMapEncodeTiled(map_t *map, int type, unsigned rank, void *address, const unsigned long long *sizes,
                           const unsigned long long *strides, const unsigned *box, const unsigned *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  if ((size_t)map % 64) return 1;
  memset(map, 0, 128);
  map->address = address; map->type = type; map->rank = rank; map->swizzle = swizzle;
  for (unsigned i = 0; i < rank; i++) { map->sizes[i] = sizes[i]; map->box[i] = box[i]; }
  for (unsigned i = 0; i + 1 < rank; i++) map->strides[i] = strides[i];
  return 0;
}
