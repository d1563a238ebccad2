// cuDNN without arithmetic; see cublas.c. A convolution has one plan, without workspace: one launch.
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static char object[64];

#define SUCCEEDS(name) \
  int name(void) { return 0; }
#define CREATES(name) \
  int name(void **created) { return *created = object, 0; }
#define LAUNCHES(name) \
  int name(void) { return stub_launch(); }

int stub_launch(void);  // of libcudart

size_t cudnnGetVersion(void) { return 91000; }
const char *cudnnGetErrorString(int status) { return "stub"; }
void cudnnGetLastErrorString(char *text, size_t size) {
  if (size) *text = 0;
}
int cudnnGetStream(void *handle, void **stream) { return *stream = NULL, 0; }
int cudnnGetReductionIndicesSize(void *handle, void *reduction, void *from, void *to,
                                 size_t *bytes) {
  return *bytes = 256, 0;
}
int cudnnGetReductionWorkspaceSize(void *handle, void *reduction, void *from, void *to,
                                   size_t *bytes) {
  return *bytes = 256, 0;
}
int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) { return *bytes = 256, 0; }
int cudnnGetRNNTempSpaceSizes(void *handle, void *layer, int mode, void *data, size_t *workspace,
                              size_t *reserved) {
  return *workspace = *reserved = 256, 0;
}
int cudnnGetRNNWeightParams(void *handle, void *layer, int number, size_t bytes, void *weights,
                            int matrix, void *of, void **at, void *bias_of, void **bias_at) {
  return *at = *bias_at = NULL, 0;
}
int cudnnGetConvolutionForwardWorkspaceSize(void *handle, void *x, void *w, void *convolution,
                                            void *y, int algorithm, size_t *bytes) {
  return *bytes = 256, 0;
}
int cudnnBackendCreateDescriptor(int kind, void **created) { return *created = object, 0; }

// A heuristic finds one engine, of number 0, with neither knobs nor notes; every size is 0.
enum { TYPE_INT64 = 3, TYPE_DESCRIPTOR = 15 };
enum { KNOB_CHOICES = 302, KNOBS = 1302, NUMERICAL_NOTES = 1303, BEHAVIOUR_NOTES = 1305 };
int cudnnBackendGetAttribute(void *descriptor, int name, int type, long wanted, long *found,
                             void *values) {
  bool is_empty = name == KNOB_CHOICES || name == KNOBS || name == NUMERICAL_NOTES ||
                  name == BEHAVIOUR_NOTES;
  if (found) *found = !is_empty;
  if (!is_empty && wanted && type != TYPE_DESCRIPTOR)
    memset(values, 0, type == TYPE_INT64 ? sizeof(long) : sizeof(int));
  return 0;
}
LAUNCHES(cudnnActivationForward)
LAUNCHES(cudnnAddTensor)
SUCCEEDS(cudnnBackendDestroyDescriptor)
LAUNCHES(cudnnBackendExecute)
SUCCEEDS(cudnnBackendFinalize)
SUCCEEDS(cudnnBackendSetAttribute)
LAUNCHES(cudnnBatchNormalizationForwardInference)
LAUNCHES(cudnnBatchNormalizationForwardTraining)
LAUNCHES(cudnnConvolutionBiasActivationForward)
LAUNCHES(cudnnConvolutionForward)
CREATES(cudnnCreate)
CREATES(cudnnCreateActivationDescriptor)
CREATES(cudnnCreateConvolutionDescriptor)
CREATES(cudnnCreateDropoutDescriptor)
CREATES(cudnnCreateFilterDescriptor)
CREATES(cudnnCreateLRNDescriptor)
CREATES(cudnnCreatePoolingDescriptor)
CREATES(cudnnCreateRNNDataDescriptor)
CREATES(cudnnCreateRNNDescriptor)
CREATES(cudnnCreateReduceTensorDescriptor)
CREATES(cudnnCreateTensorDescriptor)
SUCCEEDS(cudnnDeriveBNTensorDescriptor)
SUCCEEDS(cudnnDestroy)
SUCCEEDS(cudnnDestroyActivationDescriptor)
SUCCEEDS(cudnnDestroyConvolutionDescriptor)
SUCCEEDS(cudnnDestroyDropoutDescriptor)
SUCCEEDS(cudnnDestroyFilterDescriptor)
SUCCEEDS(cudnnDestroyLRNDescriptor)
SUCCEEDS(cudnnDestroyPoolingDescriptor)
SUCCEEDS(cudnnDestroyRNNDataDescriptor)
SUCCEEDS(cudnnDestroyRNNDescriptor)
SUCCEEDS(cudnnDestroyReduceTensorDescriptor)
SUCCEEDS(cudnnDestroyTensorDescriptor)
SUCCEEDS(cudnnFindConvolutionForwardAlgorithmEx)
SUCCEEDS(cudnnGetConvolutionForwardAlgorithm_v7)
SUCCEEDS(cudnnGetTensorNdDescriptor)
LAUNCHES(cudnnLRNCrossChannelForward)
LAUNCHES(cudnnPoolingForward)
LAUNCHES(cudnnRNNForward)
LAUNCHES(cudnnReduceTensor)
SUCCEEDS(cudnnSetActivationDescriptor)
SUCCEEDS(cudnnSetConvolutionGroupCount)
SUCCEEDS(cudnnSetConvolutionMathType)
SUCCEEDS(cudnnSetConvolutionNdDescriptor)
SUCCEEDS(cudnnSetDropoutDescriptor)
SUCCEEDS(cudnnSetFilterNdDescriptor)
SUCCEEDS(cudnnSetLRNDescriptor)
SUCCEEDS(cudnnSetPoolingNdDescriptor)
SUCCEEDS(cudnnSetRNNDataDescriptor)
SUCCEEDS(cudnnSetRNNDescriptor_v8)
SUCCEEDS(cudnnSetReduceTensorDescriptor)
SUCCEEDS(cudnnSetStream)
SUCCEEDS(cudnnSetTensorNdDescriptor)
LAUNCHES(cudnnSoftmaxForward)
