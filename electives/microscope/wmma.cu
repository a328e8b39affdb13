// One warp multiplies two 16 × 16 matrices on Tensor Cores: fp16, with sums in fp32.
#include <mma.h>
using namespace nvcuda;

__global__ void multiply(const half *a, const half *b, float *out) {
    // A fragment is a matrix whose numbers are spread over the registers of the warp's 32 threads.
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> total;
    wmma::fill_fragment(total, 0);
    wmma::load_matrix_sync(left, a, 16);        // 16: numbers from one row to the next
    wmma::load_matrix_sync(right, b, 16);
    wmma::mma_sync(total, left, right, total);  // total = left · right + total
    wmma::store_matrix_sync(out, total, 16, wmma::mem_row_major);
}

void launch_multiply(const half *a, const half *b, float *out, cudaStream_t stream) {
    multiply<<<1, 32, 0, stream>>>(a, b, out);  // one block of one warp
}
