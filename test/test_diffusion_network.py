"""Pins what would still run with a mistake in it: names, crops, orders, keypoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusion_files import weights

from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.diffusion.config import DiffusionConfig
from flashrt_ros.policies.diffusion.encoder import SpatialSoftmax, VisionConfig, crop_centre
from flashrt_ros.policies.diffusion.network import DiffusionNetwork
from flashrt_ros.policies.diffusion.schedule import ScheduleConfig
from flashrt_ros.policies.diffusion.unet import StepEmbedding, Unet, UnetConfig

UNET = UnetConfig((16, 32), 5, 8, 16, True)
SCHEDULE = ScheduleConfig("DDIM", 100, 4, "linear", 1e-4, 0.02, "epsilon", True, 1.0)
VISION = VisionConfig("resnet18", True, 8, (48, 56), None, (37, 50))
BASE = DiffusionConfig(4, 3, 2, 2, 2, 16, 8, False, UNET, SCHEDULE, VISION)


def network(config: DiffusionConfig) -> DiffusionNetwork:
    made = DiffusionNetwork(config).eval()
    made.load_state_dict(weights(made))
    return made


def seen(seed: int = 1) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = [torch.rand(2, 3, 37, 50, generator=generator) for _ in range(2)]
    state = torch.randn(2, 4, generator=generator)
    return state, images, torch.randn(2, 3, generator=generator)


def test_names_are_those_of_lerobot() -> None:
    shared = set(DiffusionNetwork(BASE).state_dict())
    assert {
        "rgb_encoder.backbone.0.weight",
        "rgb_encoder.backbone.4.0.conv1.weight",
        "rgb_encoder.backbone.7.1.bn2.bias",
        "rgb_encoder.pool.nets.weight",
        "rgb_encoder.pool.pos_grid",
        "rgb_encoder.out.bias",
        "unet.diffusion_step_encoder.1.weight",
        "unet.diffusion_step_encoder.3.bias",
        "unet.down_modules.0.0.conv1.block.0.weight",
        "unet.down_modules.0.0.cond_encoder.1.weight",
        "unet.down_modules.0.0.residual_conv.weight",
        "unet.down_modules.0.2.weight",
        "unet.mid_modules.1.conv2.block.1.bias",
        "unet.up_modules.0.2.bias",
        "unet.final_conv.0.block.0.weight",
        "unet.final_conv.1.bias",
    } <= shared
    assert "unet.down_modules.1.2.weight" not in shared, "the last resolution is not halved"
    separate = set(
        DiffusionNetwork(replace(BASE, use_separate_rgb_encoder_per_camera=True)).state_dict()
    )
    assert "rgb_encoder.1.backbone.0.weight" in separate


def test_conditioning_is_ordered_by_observation_then_by_kind() -> None:
    state, images, environment = seen()
    for separate in (False, True):
        net = network(replace(BASE, use_separate_rgb_encoder_per_camera=separate))
        with torch.no_grad():
            found = net.condition(state, images, environment)
            parts = []
            for step in range(2):
                parts.append(state[step])
                for camera, image in enumerate(images):
                    encoder = net.rgb_encoder[camera] if separate else net.rgb_encoder
                    parts.append(encoder(image[step : step + 1])[0])
                parts.append(environment[step])
        torch.testing.assert_close(found[0], torch.cat(parts), rtol=1e-4, atol=1e-5)
        assert found.shape == (1, 2 * (4 + 2 * 16 + 3))


def test_every_observation_and_the_noise_matter() -> None:
    net = network(BASE)
    noise = torch.randn(1, 1, 16, 2, generator=torch.Generator().manual_seed(4))

    def actions(number: int = -1, step: int = 0) -> torch.Tensor:
        state, images, environment = seen()
        parts = [state, *images, environment]
        if number >= 0:
            parts[number][step] += 0.5
        with torch.no_grad():
            return net.sample(net.condition(parts[0], parts[1:3], parts[3]), noise)

    usual = actions()
    assert usual.shape == (1, 16, 2)
    for number in range(4):
        for step in range(2):
            assert not torch.equal(actions(number, step), usual), (number, step)
    with torch.no_grad():
        assert not torch.equal(net.sample(net.condition(*seen()), noise + 0.1), usual)


@pytest.mark.parametrize("film", [True, False])
@pytest.mark.parametrize("dims", [(8,), (16, 24), (16, 24, 32)])
def test_the_denoiser_keeps_shapes_and_tells_steps_apart(
    dims: tuple[int, ...], film: bool
) -> None:
    config = replace(UNET, down_dims=dims, use_film_scale_modulation=film)
    net = Unet(config, 3, 5, (60, 30, 0))
    net.load_state_dict(weights(net))
    sample, condition = torch.randn(1, 8, 3), torch.randn(1, 5)
    with torch.no_grad():
        found = [net(sample, step, condition) for step in range(3)]
    assert all(item.shape == sample.shape for item in found)
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


def test_the_embedding_of_a_step_is_its_timesteps_sines_and_cosines() -> None:
    table = StepEmbedding(6, (7, 0))
    expected = [torch.tensor(7.0) * 10000 ** -(index / 2) for index in range(3)]
    torch.testing.assert_close(table(0)[0, :3], torch.stack(expected).sin())
    torch.testing.assert_close(table(0)[0, 3:], torch.stack(expected).cos())
    assert table(1)[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert not table.state_dict(), "no part of a checkpoint"


@pytest.mark.parametrize(
    ("size", "first"), [((4, 4), 1), ((3, 3), 2), ((2, 5), 2), ((5, 2), 0), ((6, 6), 0)]
)
def test_the_middle_is_rounded_to_even(size: tuple[int, int], first: int) -> None:
    """Half a pixel goes to the even side, as Python rounds and so torchvision."""
    image = torch.arange(6.0).repeat(6, 1).T.repeat(2, 1, 1)
    cropped = crop_centre(image, size)
    assert cropped.shape == (2, *size)
    assert cropped[0, 0, 0] == first


def test_a_keypoint_is_where_its_map_is() -> None:
    pool = SpatialSoftmax(2, (3, 5), 2)
    pool.nets.weight.data.copy_(torch.eye(2).view(2, 2, 1, 1))
    pool.nets.bias.data.zero_()
    maps = torch.zeros(1, 2, 3, 5)
    maps[0, 0, 2, 1] = maps[0, 1, 0, 4] = 100.0
    with torch.no_grad():
        points = pool(maps)
    torch.testing.assert_close(points, torch.tensor([[[-0.5, 1.0], [1.0, -1.0]]]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: replace(UNET, kernel_size=4), "kernel_size: expected an odd number.* found 4"),
        (lambda: replace(UNET, n_groups=7), "n_groups: expected a divisor of down_dims.* found 7"),
        (lambda: replace(UNET, down_dims=()), "down_dims: expected at least one number"),
        (lambda: replace(UNET, down_dims=(12,), n_groups=4), "multiple of 8, found 12"),
        (lambda: replace(UNET, diffusion_step_embed_dim=3), "even number of at least 4, found 3"),
        (lambda: replace(VISION, crop_shape=(49, 50)), "at most the 48 rows and 56 columns"),
        (lambda: replace(VISION, vision_backbone="vgg"), "vision_backbone: expected one of"),
        (lambda: replace(BASE, horizon=14), "horizon: expected a multiple of 4"),
        (lambda: replace(BASE, n_action_steps=16), "1 to 15 .*, found 16"),
        (lambda: replace(BASE, n_obs_steps=17), r"1 to horizon \(16\), found 17"),
        (lambda: replace(BASE, cameras=0, environment_size=0, vision=None), "found neither"),
        (lambda: replace(BASE, vision=None), "found 2 cameras"),
    ],
)
def test_options_that_contradict_each_other_are_refused(change: object, words: str) -> None:
    assert callable(change)
    with pytest.raises(InvalidArgumentError, match=words):
        change()
