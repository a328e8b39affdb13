// A reduction in CUDA C++: each block of 256 threads finds the maximum of one row.
__global__ void row_maximum(const float *x, float *out, int columns) {
    __shared__ float of_warp[8];                                    // 256 threads are 8 warps
    const float *row = x + (long)blockIdx.x * columns;
    float most = -INFINITY;
    for (int at = threadIdx.x; at < columns; at += blockDim.x)      // every 256th number
        most = fmaxf(most, row[at]);
    for (int distance = 16; distance > 0; distance /= 2)            // within a warp, by registers
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;    // one thread of each warp
    __syncthreads();                                                // all 8 have written
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < 8; warp++) most = fmaxf(most, of_warp[warp]);
        out[blockIdx.x] = most;
    }
}

void launch_row_maximum(const float *x, float *out, int rows, int columns, cudaStream_t stream) {
    row_maximum<<<rows, 256, 0, stream>>>(x, out, columns);
}
