// cuBLAS without arithmetic: a product is counted as a launch and leaves its output unwritten.
static char object[64];

#define SUCCEEDS(name) \
  int name(void) { return 0; }
#define LAUNCHES(name) \
  int name(void) { return stub_launch(); }

int stub_launch(void);  // of libcudart

int cublasCreate_v2(void **created) { return *created = object, 0; }
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0, 0; }
const char *cublasGetStatusName(int status) { return "stub"; }
const char *cublasGetStatusString(int status) { return "stub"; }
SUCCEEDS(cublasDestroy_v2)
SUCCEEDS(cublasSetMathMode)
SUCCEEDS(cublasSetStream_v2)
LAUNCHES(cublasDgeam)
LAUNCHES(cublasDgemmBatched)
LAUNCHES(cublasDgemmStridedBatched)
LAUNCHES(cublasDgemm_v2)
LAUNCHES(cublasDgetrfBatched)
LAUNCHES(cublasDgetriBatched)
LAUNCHES(cublasGemmBatchedEx)
LAUNCHES(cublasGemmEx)
LAUNCHES(cublasGemmStridedBatchedEx)
LAUNCHES(cublasScopy_v2)
LAUNCHES(cublasSgeam)
LAUNCHES(cublasSgemmBatched)
LAUNCHES(cublasSgemmStridedBatched)
LAUNCHES(cublasSgemm_v2)
LAUNCHES(cublasSgetrfBatched)
LAUNCHES(cublasSgetriBatched)
LAUNCHES(cublasSscal_v2)
