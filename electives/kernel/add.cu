// The first kernel in CUDA C++: each thread adds one pair of numbers.
__global__ void add(const float *x, const float *y, float *out, long size) {
    long at = (long)blockIdx.x * blockDim.x + threadIdx.x;  // this thread's number
    if (at < size) out[at] = x[at] + y[at];                 // the last block is not full
}

void launch_add(const float *x, const float *y, float *out, long size, cudaStream_t stream) {
    int threads = 256;                                      // per block: a multiple of 32
    long blocks = (size + threads - 1) / threads;           // in the grid: rounded up
    add<<<blocks, threads, 0, stream>>>(x, y, out, size);
}
