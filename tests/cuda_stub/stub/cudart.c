// A CUDA runtime without a device: memory is host memory, copies are real, kernels do nothing.
//
// ONNX Runtime's CUDA provider runs on it as on a card: it places nodes, allocates, copies, launches
// and captures. What a card refuses while a stream is captured is refused here too.
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counts.h"

#define GIBIBYTE (1ul << 30)
#define ALIGNMENT 256

static struct counts counted = {.capacity_bytes = 80 * GIBIBYTE};
static bool is_capturing;
static char object[64];  // stands for streams, events and graphs: their addresses are not read

struct counts *stub_counts(void) { return &counted; }

static cudaError_t refused_in_capture(void) {
  return is_capturing ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

// ------------------------------------------------------------------------------------- the device

static bool has_device(void) {
  const char *text = getenv("CUDA_STUB_DEVICES");
  return text == NULL || atoi(text) > 0;
}

cudaError_t cudaGetDeviceCount(int *count) {
  *count = has_device();
  return has_device() ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  return device == 0 && has_device() ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaDriverGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) {
  counted.synchronizations++;
  return refused_in_capture();
}

// An H100, so far as ONNX Runtime reads it.
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
  memset(found, 0, sizeof *found);
  strcpy(found->name, "stub");
  found->totalGlobalMem = counted.capacity_bytes;
  found->major = 9;
  found->multiProcessorCount = 132;
  found->warpSize = 32;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->maxBlocksPerMultiProcessor = 32;
  found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 2147483647;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->sharedMemPerBlock = 48 << 10;
  found->sharedMemPerBlockOptin = 227 << 10;
  found->sharedMemPerMultiprocessor = 228 << 10;
  found->l2CacheSize = 50 << 20;
  found->memPitch = 2147483647;
  found->textureAlignment = 512;
  found->totalConstMem = 65536;
  found->canMapHostMemory = found->concurrentKernels = found->unifiedAddressing = 1;
  found->memoryPoolsSupported = found->managedMemory = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp card;
  cudaGetDeviceProperties(&card, device);
  switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = card.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = card.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = card.multiProcessorCount; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = card.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = card.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = card.sharedMemPerMultiprocessor;
      break;
    case cudaDevAttrMaxThreadsPerBlock: *value = card.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = card.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = card.regsPerBlock; break;
    case cudaDevAttrWarpSize: *value = card.warpSize; break;
    case cudaDevAttrL2CacheSize: *value = card.l2CacheSize; break;
    default: *value = 1;
  }
  return cudaSuccess;
}

// ----------------------------------------------------------------------------------------- memory

struct header {
  size_t bytes;
};

static void *allocate(size_t bytes) {
  char *block = NULL;
  if (posix_memalign((void **)&block, ALIGNMENT, bytes + ALIGNMENT)) return NULL;
  ((struct header *)block)->bytes = bytes;
  return block + ALIGNMENT;
}
static void release(void *pointer) {
  if (pointer) free((char *)pointer - ALIGNMENT);
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  if (is_capturing) return cudaErrorStreamCaptureUnsupported;
  if (counted.allocated_bytes + bytes > counted.capacity_bytes) return cudaErrorMemoryAllocation;
  if (!(*pointer = allocate(bytes))) return cudaErrorMemoryAllocation;
  memset(*pointer, 0, bytes);  // kernels write nothing: what they compute is zero
  counted.allocations++;
  counted.allocated_bytes += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void *pointer) {
  if (pointer) counted.allocated_bytes -= ((struct header *)((char *)pointer - ALIGNMENT))->bytes;
  release(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return cudaFree(pointer); }
cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
  *pointer = allocate(bytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  return cudaMallocHost(pointer, bytes);
}
cudaError_t cudaFreeHost(void *pointer) { return release(pointer), cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  size_t capacity = counted.capacity_bytes, used = counted.allocated_bytes;
  *available = capacity > used ? capacity - used : 0;
  *total = capacity;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
  memset(found, 0, sizeof *found);
  found->type = cudaMemoryTypeDevice;
  found->devicePointer = (void *)pointer;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
  return *pool = (cudaMemPool_t)object, cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr name, void *value) {
  return memset(value, 0, 8), cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr name, void *value) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) { return cudaSuccess; }

// ----------------------------------------------------------------------------------------- copies

static void count_copy(enum cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice: counted.host_to_device++; break;
    case cudaMemcpyDeviceToHost: counted.device_to_host++; break;
    default: counted.device_to_device++;
  }
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind) {
  count_copy(kind);
  if (is_capturing) return cudaErrorStreamCaptureImplicit;
  memmove(target, source, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream) {
  count_copy(kind);
  memmove(target, source, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source,
                              size_t source_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > target_pitch || width > source_pitch) return cudaErrorInvalidPitchValue;
  count_copy(kind);
  for (size_t line = 0; line < height; line++)
    memmove((char *)target + line * target_pitch, (const char *)source + line * source_pitch, width);
  return cudaSuccess;
}
// In any order: from the last to the first.
cudaError_t cudaMemcpy3DBatchAsync(size_t count, struct cudaMemcpy3DBatchOp *copies,
                                   unsigned long long flags, cudaStream_t stream) {
  if (is_capturing) return cudaErrorStreamCaptureUnsupported;
  if (flags || stream == NULL) return cudaErrorInvalidValue;
  counted.batches++;
  for (struct cudaMemcpy3DBatchOp *each = copies + count; each-- > copies;) {
    struct cudaMemcpy3DOperand *from = &each->src, *to = &each->dst;
    if (from->type != cudaMemcpyOperandTypePointer || to->type != cudaMemcpyOperandTypePointer ||
        each->srcAccessOrder != cudaMemcpySrcAccessOrderStream || each->extent.depth != 1 ||
        !each->extent.width || !each->extent.height || from->op.ptr.layerHeight ||
        to->op.ptr.layerHeight || from->op.ptr.rowLength < each->extent.width ||
        to->op.ptr.rowLength < each->extent.width)
      return cudaErrorInvalidValue;
    for (size_t line = 0; line < each->extent.height; line++)
      memmove((char *)to->op.ptr.ptr + line * to->op.ptr.rowLength,
              (char *)from->op.ptr.ptr + line * from->op.ptr.rowLength, each->extent.width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyFromSymbol(void *target, const void *symbol, size_t bytes, size_t offset,
                                 enum cudaMemcpyKind kind) {
  return memset(target, 0, bytes), cudaSuccess;
}
cudaError_t cudaMemset(void *target, int value, size_t bytes) {
  counted.memsets++;
  return memset(target, value, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemset(target, value, bytes);
}
cudaError_t cudaMemset2DAsync(void *target, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  if (width > pitch) return cudaErrorInvalidPitchValue;
  counted.memsets++;
  for (size_t line = 0; line < height; line++) memset((char *)target + line * pitch, value, width);
  return cudaSuccess;
}

// ---------------------------------------------------------------------- streams, events and graphs

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return *stream = (cudaStream_t)object, cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  counted.synchronizations++;
  return refused_in_capture();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  if (is_capturing) return cudaErrorIllegalState;
  is_capturing = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  if (!is_capturing) return cudaErrorIllegalState;
  is_capturing = false;
  counted.captures++;
  return *graph = (cudaGraph_t)object, cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  return *executable = (cudaGraphExec_t)object, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  counted.graph_launches++;
  return refused_in_capture();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return *event = (cudaEvent_t)object, cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  return *milliseconds = 1, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return refused_in_capture(); }

// ---------------------------------------------------------------------------------------- kernels

// Also called by the stubs of cuBLAS, whose products are launches.
cudaError_t stub_launch(void) {
  if (is_capturing)
    counted.captured_launches++;
  else
    counted.launches++;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
  return stub_launch();
}
cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block,
                                        void **arguments, size_t shared, cudaStream_t stream) {
  return stub_launch();
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *configuration, const void *kernel,
                                void **arguments) {
  return stub_launch();
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream) {
  return stub_launch();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  return function(data), cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *kernel) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 32;
  found->ptxVersion = found->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute name, int value) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                                   int size, size_t shared,
                                                                   unsigned flags) {
  return *blocks = 2, cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute name,
                                            int value, int device) {
  return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *names,
                                void **values, unsigned count, enum cudaLibraryOption *options,
                                void **option_values, unsigned option_count) {
  return *library = (cudaLibrary_t)object, cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  return *kernel = (cudaKernel_t)object, cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  *function = NULL;
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorSymbolNotFound;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
const char *cudaGetErrorString(cudaError_t error) {
  static char text[32];
  return snprintf(text, sizeof text, "stub error %d", error), text;
}

// What nvcc generates calls to: registration of kernels, and the <<<>>> of a launch.
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  return *kernel = (cudaKernel_t)object, cudaSuccess;
}
void **__cudaRegisterFatBinary(void *binary) {
  static void *handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int threads, void *a, void *b, void *c, void *d, int *e) {}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_external,
                       size_t bytes, int is_constant, int is_global) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  return cudaSuccess;
}
