// May this convolution use Tensor Cores? Its descriptor's math type says so.
#include <cudnn.h>

#include <cstddef>

static cudnnHandle_t handle;
static cudnnTensorDescriptor_t from, to;
static cudnnFilterDescriptor_t filter;
static cudnnConvolutionDescriptor_t convolution;

extern "C" int convolve(void *x, void *w, void *y, int images, int channels, int px, int type,
                        int layout, int math, void *space, size_t bytes) {
    if (!handle) {
        cudnnCreate(&handle);
        cudnnCreateTensorDescriptor(&from), cudnnCreateTensorDescriptor(&to);
        cudnnCreateFilterDescriptor(&filter);
        cudnnCreateConvolutionDescriptor(&convolution);
    }
    auto numbers = (cudnnDataType_t)type;
    auto order = (cudnnTensorFormat_t)layout;
    cudnnSetTensor4dDescriptor(from, order, numbers, images, channels, px, px);
    cudnnSetTensor4dDescriptor(to, order, numbers, images, channels, px, px);
    cudnnSetFilter4dDescriptor(filter, numbers, order, channels, channels, 3, 3);
    cudnnSetConvolution2dDescriptor(convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                    CUDNN_DATA_FLOAT);  // sums in fp32
    cudnnSetConvolutionMathType(convolution, (cudnnMathType_t)math);

    cudnnConvolutionFwdAlgoPerf_t found[8];             // cuDNN's guesses, the best first
    int count = 0;
    int said = cudnnGetConvolutionForwardAlgorithm_v7(handle, from, filter, convolution, to, 8,
                                                      &count, found);
    float one = 1, zero = 0;
    for (int at = 0; !said && at < count; at++) {
        if (found[at].status || found[at].memory > bytes) continue;
        cudnnSetConvolutionMathType(convolution, found[at].mathType);  // as it was guessed for
        return cudnnConvolutionForward(handle, &one, from, x, filter, w, convolution,
                                       found[at].algo, space, bytes, &zero, to, y);
    }
    return said ? said : -1;                            // none fits
}
