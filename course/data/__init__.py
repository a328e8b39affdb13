"""Images for training: for labs that read, store or augment them, or measure how fast that is.

`crop_set` and `default_set` are the course's sets of photographs; `formats` are ways of storing
them, and `augment` random changes of them.
"""

import lazy_loader

_NAMES = {
    "digits": "handwritten_digits",
    "images": "decode_jpeg epoch_px open_folder open_image RandomCrop train_view",
    "loader": "image_sets loaders normalised val_subset",
    "seeded": "Seeded",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["augment", "crop_set", "default_set", "formats"],
    {module: names.split() for module, names in _NAMES.items()},
)
