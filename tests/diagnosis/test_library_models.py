"""Models of other packages, from their configurations with random weights: verdicts that DataParallel bears out.

The packages of the extra ``more`` are installed by ``make test-more``; the others are tried wherever they are.
"""

import importlib
import os

import pytest
import torch
from torch import nn

import labkit

pytestmark = pytest.mark.more

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
STACK = {"vocab_size": 100, **SMALL}
SPEECH = {
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


def words(rows=8, length=10):
    return torch.randint(5, 90, (rows, length))


def images(size=32):
    return torch.randn(8, 3, size, size)


def hugging(name, config=None, **options):
    """A model of transformers from its configuration."""
    package = importlib.import_module("transformers")
    kind = name.removesuffix("Model").partition("For")[0].removesuffix("LMHead")
    return getattr(package, name)(getattr(package, f"{config or kind}Config")(**options))


def encoder_decoder():
    from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

    both = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**STACK), BertConfig(**STACK))
    both.decoder_start_token_id, both.pad_token_id = 1, 0
    return EncoderDecoderModel(both)


def patches():
    from einops.layers.torch import EinMix, Rearrange, Reduce

    return nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 16),
        EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=16, d=8), Reduce("b n d -> b d", "mean"),
    )  # fmt: skip


def embedder():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = hugging("BertModel", **STACK)

        def forward(self, given):
            given["token_embeddings"] = self.body(given["input_ids"], given["attention_mask"])[0]
            return given

    return SentenceTransformer(modules=[Tokens(), Pooling(32), Dense(32, 16), Normalize()], device="cpu")


def of(package, name, *args, **options):
    """An object of a package."""
    return getattr(importlib.import_module(package), name)(*args, **options)


# Each with its package, how it is made, its inputs, and what is found; a loss of one number is one from each replica.
GRAPH = torch.randn(16, 5), torch.randint(0, 16, (2, 40))
DENSE = torch.randn(8, 6, 5), torch.randint(0, 2, (8, 6, 6)).float()
MODELS = {
    "BERT": ("transformers", lambda: hugging("BertModel", **STACK), {"input_ids": words()}, set()),
    "BERT with labels": ("transformers", lambda: hugging("BertForSequenceClassification", **STACK),
        {"input_ids": words(), "labels": torch.randint(0, 2, (8,))}, {"scalar_output"}),
    "Llama": ("transformers", lambda: hugging("LlamaForCausalLM", **STACK), {"input_ids": words()}, set()),
    "ViT": ("transformers", lambda: hugging("ViTModel", image_size=32, patch_size=8, **SMALL),
        {"pixel_values": images()}, set()),
    # In training it masks spans that numpy draws.
    "wav2vec2": ("transformers", lambda: hugging("Wav2Vec2Model", **SPEECH, **SMALL),
        {"input_values": torch.randn(8, 800)}, {"random_outputs"}),
    "EncoderDecoder": ("transformers", encoder_decoder,
        {"input_ids": words(), "decoder_input_ids": words(8, 6), "use_cache": False}, set()),
    "GCNConv": ("torch_geometric", lambda: of("torch_geometric.nn", "GCNConv", 5, 4), GRAPH, {"rows_refer"}),
    "DenseGCNConv": ("torch_geometric", lambda: of("torch_geometric.nn", "DenseGCNConv", 5, 4), DENSE, set()),
    "einops": ("einops", patches, (images(16),), set()),
    "timm ResNet": ("timm", lambda: of("timm", "create_model", "resnet18"), (images(64),), {"batch_norm"}),
    "timm ConvNeXt": ("timm", lambda: of("timm", "create_model", "convnext_atto"), (images(64),), set()),
    "kornia augmentation": ("kornia",
        lambda: nn.Sequential(of("kornia.augmentation", "RandomHorizontalFlip", p=0.5)), (images(),), set()),
    "sentence-transformers": ("sentence_transformers", embedder,
        ({"input_ids": words(), "attention_mask": torch.ones(8, 10, dtype=torch.long)},), set()),
}  # fmt: skip


def usable(package):
    """Import a package, or skip the test with the reason."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        return importlib.import_module(package)
    except Exception as error:  # torchvision built for another torch raises RuntimeError
        return pytest.skip(f"{package} cannot be imported: {type(error).__name__}: {str(error)[:100]}")


@pytest.mark.parametrize("name", MODELS)
def test_the_verdict_is_that_of_data_parallel(name):
    package, make, inputs, expected = MODELS[name]
    usable(package)
    torch.manual_seed(0)
    model = make()
    args, kwargs = (inputs, {}) if isinstance(inputs, tuple) else ((), inputs)
    registry = importlib.import_module("transformers.activations").ACT2FN if package == "transformers" else {}
    before = dict(dict.items(registry))
    found = labkit.diagnose(model, *args, gpus=4, kwargs=kwargs)
    assert {one.name for one in found.findings} - {"home_memory"} == expected, found
    assert dict.items(registry) == before.items()
    if before:
        make()  # the registry still makes activations
