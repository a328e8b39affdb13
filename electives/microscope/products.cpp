// May this product use Tensor Cores? The type it computes in says so, and the handle's math mode.
#include <cublas_v2.h>

extern "C" int multiply(void *a, void *b, void *c, int side, int type, int compute, int mode) {
    static cublasHandle_t handle = nullptr;
    if (!handle) cublasCreate(&handle);                        // once: it is expensive
    int said = cublasSetMathMode(handle, (cublasMath_t)mode);  // for all products of the handle
    if (said) return said;
    float one = 1, zero = 0;                                   // c = one · a · b + zero · c
    return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, side, side, side,
                        &one, a, (cudaDataType)type, side,     // the numbers' type, a row's length
                        b, (cudaDataType)type, side,
                        &zero, c, (cudaDataType)type, side,
                        (cublasComputeType_t)compute,          // for this product alone
                        CUBLAS_GEMM_DEFAULT);                  // cuBLAS chooses the kernel
}
