"""TODO 12 and 13: mixup and CutMix as learners may write them."""

from answers.lines import Answer

SHARE = (
    "    share = torch.distributions.Beta(alpha, alpha).sample((len(images), 1)).to(images.device)"
)
PAIRS = "    other = torch.randperm(len(images), device=images.device)"
LABELS = "    labels = share * labels + (1 - share) * labels[other]"
PIXELS = "    images = share * images + (1 - share) * images[other]"

HALF = (
    "    half = (1 - torch.distributions.Beta(alpha, alpha).sample((count, 1)).to(device))"
    ".sqrt() / 2"
)
MIDDLES = "    y, x = torch.rand(2, count, 1, device=device)"
ROWS = "    rows = ((torch.arange(height, device=device) + 0.5) / height - y).abs() < half"
PASTED = "    images = torch.where(box, images[other], images)"
COVERED = "    covered = box.float().mean(dim=(2, 3))"
COUNTED = "    labels = (1 - covered) * labels + covered * labels[other]"
BOX_PAIRS = "    other = torch.randperm(count, device=device)"
SEEDED = "generator=torch.Generator().manual_seed(0)"

WRONG = {
    "one share for all images": Answer(
        todo=12,
        edits={SHARE: SHARE.replace("(len(images), 1)", "(1, 1)")},
        why="As the paper's code has it: one λ a batch. It works, and is not what was asked for.",
        said=r"all images of a batch have the same share",
    ),
    "mixes pixels and leaves labels": Answer(
        todo=12,
        edits={LABELS: ""},
        why="An image of two classes counts as one of them.",
        said=r"the images are mixed, and their labels are not",
    ),
    "other shares for the labels": Answer(
        todo=12,
        edits={LABELS: f"{LABELS}\n{SHARE}"},
        why="Draws twice: the labels do not say what is in the images.",
        said=r"which its label counts .*: one share for both",
    ),
    "labels of other partners": Answer(
        todo=12,
        edits={LABELS: f"{LABELS}\n{PAIRS}"},
        why="Draws the pairs twice: a label names an image that is not there.",
        said=r"mixed with another image's than the pixels are",
    ),
    "shares the wrong way round": Answer(
        todo=12,
        edits={LABELS: "    labels = (1 - share) * labels + share * labels[other]"},
        why="The label counts what is left of the other image.",
        said=r"the two shares are swapped",
    ),
    "forgets the rest": Answer(
        todo=12,
        edits={LABELS: "    labels = share * labels + share * labels[other]"},
        why="Labels do not sum to one.",
        said=r"a label's shares add up to [\d.]+ instead of 1",
    ),
    "ignores alpha": Answer(
        todo=12,
        edits={SHARE: SHARE.replace("Beta(alpha, alpha)", "Beta(1.0, 1.0)")},
        why="Uniform shares, whatever the config asks.",
        said=r"not those of Beta\(alpha, alpha\)",
    ),
    "the same shares on all ranks": Answer(
        todo=12,
        edits={
            SHARE: """\
    state = torch.get_rng_state()
    torch.manual_seed(0)
    share = torch.distributions.Beta(alpha, alpha).sample((len(images), 1)).to(images.device)
    torch.set_rng_state(state)"""
        },
        why="Seeded in every call: all steps and all ranks draw the same shares.",
        said=r"every call draws the same shares",
    ),
    "the same pairs on all ranks": Answer(
        todo=12,
        edits={PAIRS: f"    other = torch.randperm(len(images), {SEEDED}).to(images.device)"},
        why="Seeded in every call: all steps and all ranks make the same pairs.",
        said=r"every call makes the same pairs",
    ),
    "pairs by chance, some twice": Answer(
        todo=12,
        edits={PAIRS: "    other = torch.randint(len(images), (len(images),)).to(images.device)"},
        why="No permutation: a third of the images is nobody's partner.",
        said=r"an image is the other one of several",
    ),
    "pairs each image with itself": Answer(
        todo=12,
        edits={PAIRS: "    other = torch.arange(len(images), device=images.device)"},
        why="Nothing is mixed, and the loss is that of the step before.",
        said=r"the images come back as they were",
    ),
    "a loop over images": Answer(
        todo=12,
        edits={
            PIXELS: """\
    images = torch.stack(
        [share[i] * images[i] + (1 - share[i]) * images[other[i]] for i in range(len(images))]
    )"""
        },
        why="Right, and a thousand kernels for a batch of 256.",
        said=r"instead of a loop over images",
    ),
    "shares left on the host": Answer(
        todo=12,
        edits={SHARE: SHARE.replace(".to(images.device)", "")},
        why="Right on a CPU; on an accelerator two devices meet.",
        said=r"pretended accelerator, the first step fails",
    ),
    "the share as it was drawn": Answer(
        todo=13,
        edits={COVERED: "    covered = 4 * half**2"},
        why="λ is not corrected where the border cuts off some of a box.",
        said=r"where the border cuts off some of a box",
    ),
    "a box for all images": Answer(
        todo=13,
        edits={
            HALF: HALF.replace("(count, 1)", "(1, 1)"),
            MIDDLES: "    y, x = torch.rand(2, 1, 1, device=device).expand(2, count, 1)",
        },
        why="As the paper's code has it: one box a batch.",
        said=r"all images of a batch have the same share",
    ),
    "sides instead of areas": Answer(
        todo=13,
        edits={HALF: HALF.replace(".sqrt()", "")},
        why="Boxes are too small: their area is (1 - λ)².",
        said=r"the areas of the boxes are not those of Beta",
    ),
    "labels of the images alone": Answer(
        todo=13,
        edits={COUNTED: ""},
        why="Labels name one class where two are to be seen.",
        said=r"the images are mixed, and their labels are not",
    ),
    "counts the box for the image": Answer(
        todo=13,
        edits={COUNTED: "    labels = covered * labels + (1 - covered) * labels[other]"},
        why="The shares are swapped.",
        said=r"the two shares are swapped",
    ),
    "pastes from the mirrored batch, counts the permuted": Answer(
        todo=13,
        edits={PASTED: PASTED.replace("images[other]", "images.flip(0)")},
        why="The label names an image that is not there.",
        said=r"mixed with another image's than the pixels are",
    ),
    "blends in the box": Answer(
        todo=13,
        edits={PASTED: PASTED.replace("images[other]", "(images + images[other]) / 2")},
        why="Half of each is in the box, and the label counts the other one for all of it.",
        said=r"pixels are blended",
    ),
    "the same boxes' pairs on all ranks": Answer(
        todo=13,
        edits={BOX_PAIRS: f"    other = torch.randperm(count, {SEEDED}).to(device)"},
        why="Seeded in every call.",
        said=r"every call makes the same pairs",
    ),
    "a loop over boxes": Answer(
        todo=13,
        edits={
            PASTED: """\
    mixed = images.clone()
    for i in range(count):
        mixed[i] = torch.where(box[i], images[other[i]], images[i])
    images = mixed"""
        },
        why="Right, and many kernels for an image.",
        said=r"instead of a loop over images",
    ),
    "middles left on the host": Answer(
        todo=13,
        edits={MIDDLES: MIDDLES.replace(", device=device", "")},
        why="Right on a CPU; on an accelerator two devices meet.",
        said=r"pretended accelerator, the first step fails",
    ),
}

RIGHT = {
    "counts the share of the other one": Answer(
        todo=12,
        edits={
            LABELS: "    labels = labels + share * (labels[other] - labels)",
            PIXELS: "    images = images + share * (images[other] - images)",
        },
        why="λ for the other image: Beta(α, α) is symmetric.",
    ),
    "the neighbour, as torchvision pairs": Answer(
        todo=12,
        edits={
            LABELS: "    labels = share * labels + (1 - share) * labels.roll(1, 0)",
            PIXELS: "    images = share * images + (1 - share) * images.roll(1, 0)",
            PAIRS: "",
        },
        why="The batch is shuffled, so its neighbours are chance enough.",
    ),
    "lerp, and shares by gamma": Answer(
        todo=12,
        edits={
            SHARE: """\
    draws = torch._standard_gamma(torch.full((2, len(images), 1), alpha, device=images.device))
    share = draws[0] / draws.sum(dim=0)""",
            PIXELS: "    images = images[other].lerp(images, share)",
        },
        why="A Beta is made of two gammas; all on the device.",
    ),
    "boxes moved inside": Answer(
        todo=13,
        edits={
            MIDDLES: "    y, x = half + torch.rand(2, count, 1, device=device) * (1 - 2 * half)",
        },
        why="The border cuts off nothing: areas are those that were drawn.",
    ),
    "boxes by numbers of pixels": Answer(
        todo=13,
        edits={
            ROWS: """\
    top, bottom = ((y + sign * half).mul(height).round().clamp(0, height) for sign in (-1, 1))
    row = torch.arange(height, device=device)
    rows = (row >= top) & (row < bottom)""",
        },
        why="Whole pixels, cut off at the border.",
    ),
    "writes into a copy": Answer(
        todo=13,
        edits={
            PASTED: """\
    there = box.expand_as(images)
    images, before = images.clone(), images
    images[there] = before[other][there]""",
        },
        why="By a mask instead of where.",
    ),
}
