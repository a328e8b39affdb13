// The first kernel in CUDA C++: each thread adds one pair of numbers.
extern "C" __global__ void add(const float *x, const float *y, float *out, long size) {
    long at = (long)blockIdx.x * blockDim.x + threadIdx.x;  // my block, and me in it
    if (at < size) out[at] = x[at] + y[at];                 // the last block is not full
}

extern "C" void launch_add(const float *x, const float *y, float *out, long size, void *stream) {
    int threads = 256;                                      // of a block: a multiple of 32
    long blocks = (size + threads - 1) / threads;           // of the grid: rounded up
    add<<<blocks, threads, 0, (cudaStream_t)stream>>>(x, y, out, size);
}
