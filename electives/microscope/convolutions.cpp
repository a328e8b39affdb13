// May this convolution use Tensor Cores? Its descriptor's math type says so.
#include <cudnn.h>

#include <cstddef>

static cudnnHandle_t handle;

struct Chosen {
    cudnnTensorDescriptor_t from, to;
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t convolution;
    cudnnConvolutionFwdAlgo_t how;
};

// Once for each shape: to ask for cuDNN's guess takes longer than the convolution.
extern "C" int choose(int images, int channels, int px, int type, int layout, int math,
                      size_t bytes, Chosen **made) {
    if (!handle) cudnnCreate(&handle);
    auto numbers = (cudnnDataType_t)type;
    auto order = (cudnnTensorFormat_t)layout;
    auto c = *made = new Chosen;
    cudnnCreateTensorDescriptor(&c->from), cudnnCreateTensorDescriptor(&c->to);
    cudnnCreateFilterDescriptor(&c->filter);
    cudnnCreateConvolutionDescriptor(&c->convolution);
    cudnnSetTensor4dDescriptor(c->from, order, numbers, images, channels, px, px);
    cudnnSetTensor4dDescriptor(c->to, order, numbers, images, channels, px, px);
    cudnnSetFilter4dDescriptor(c->filter, numbers, order, channels, channels, 3, 3);
    cudnnSetConvolution2dDescriptor(c->convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                    CUDNN_DATA_FLOAT);  // sums in fp32
    cudnnSetConvolutionMathType(c->convolution, (cudnnMathType_t)math);

    cudnnConvolutionFwdAlgoPerf_t found[8];             // the best first
    int count = 0;
    int said = cudnnGetConvolutionForwardAlgorithm_v7(handle, c->from, c->filter, c->convolution,
                                                      c->to, 8, &count, found);
    for (int at = 0; !said && at < count; at++) {
        if (found[at].status || found[at].memory > bytes) continue;
        c->how = found[at].algo;                        // with the math it was guessed for
        return cudnnSetConvolutionMathType(c->convolution, found[at].mathType);
    }
    return said ? said : -1;                            // none fits
}

extern "C" int convolve(Chosen *c, void *x, void *w, void *y, void *space, size_t bytes) {
    float one = 1, zero = 0;
    return cudnnConvolutionForward(handle, &one, c->from, x, c->filter, w, c->convolution, c->how,
                                   space, bytes, &zero, c->to, y);
}
