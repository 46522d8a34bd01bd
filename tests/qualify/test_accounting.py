"""The memory of a window, from config.json files of public models alone.

The expected figures are products of what the model's config says: layers x heads x
head size x bytes x tokens. DeepSeek-V4-Flash's are the paper's.
"""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from qualify.accounting import Account, Registration, account, main
from qualify.accounting_specs import AccountingError, Deployment, quiet, read_config
from tests.integration.geometry import DEEPSEEK_V4_FLASH

ROOT = Path(__file__).parents[2]
CONFIGS = Path(__file__).parent / "configs"
DOCUMENT = ROOT / "docs" / "memory.md"
COMMAND = "python -m qualify.accounting "
MIB = 2**20

HYBRID = "qwen3-next-80b-a3b"

quiet()


@cache
def accounted(
    model: str, tp: int = 1, *, chunk: int = 256, separate: bool = True, drafts: int = 0
) -> Account:
    config = read_config(CONFIGS / f"{model}.json")
    deployment = Deployment(tp, draft_layers=drafts)
    return account(config, deployment, chunk, separate_object_groups=separate)


def key_value(layers: int, heads: int, head_size: int, tokens: int = 256) -> int:
    return layers * 2 * heads * head_size * 2 * tokens


@pytest.mark.parametrize(
    ("model", "tp", "tensors", "content"),
    [
        ("llama-3-8b", 1, 32, key_value(32, 8, 128)),
        ("llama-3-8b", 4, 32, key_value(32, 2, 128)),
        ("llama-3-8b", 16, 32, key_value(32, 1, 128)),  # Each head is kept twice.
        ("llama-3.1-70b", 1, 80, key_value(80, 8, 128)),
        ("qwen3-30b-a3b", 1, 48, key_value(48, 4, 128)),
        ("gemma-3-27b", 1, 62, key_value(62, 16, 128)),  # Its windows are 4 chunks.
        ("gpt-oss-120b", 1, 36, key_value(18, 8, 64) + key_value(18, 8, 64, tokens=128)),
        ("deepseek-v3", 1, 61, 61 * 576 * 2 * 256),
        ("deepseek-v3", 8, 61, 61 * 576 * 2 * 256),  # Every rank keeps all of it.
    ],
)
def test_a_chunk_of_a_public_model(model: str, tp: int, tensors: int, content: int) -> None:
    figures = accounted(model, tp)

    assert (figures.tensors, figures.content_bytes) == (tensors, content)
    assert figures.chunk_bytes == content


@pytest.mark.parametrize("separate", [True, False])
def test_deepseek_v4_flash_has_the_papers_figures(separate: bool) -> None:
    figures = accounted("deepseek-v4-flash", separate=separate)

    assert figures.tensors == 167
    assert figures.content_bytes == 16_406_080
    assert figures.chunk_bytes == 16_408_576
    assert figures.window_bytes(32) == 500.75 * MIB
    assert figures.window_bytes(1024) == 16_802_381_824


def test_deepseek_v4_flash_has_the_tensors_of_the_hand_derivation() -> None:
    expected = Counter[int]()
    for kind in DEEPSEEK_V4_FLASH.kinds:
        expected[kind.states * kind.state_bytes] += kind.tensors

    figures = accounted("deepseek-v4-flash")

    assert Counter(each.bytes for each in figures.registrations) == expected


def test_drafts_of_deepseek_v4_add_the_papers_three_tensors() -> None:
    with_drafts = accounted("deepseek-v4-flash", drafts=3)

    assert with_drafts.tensors == 170
    added = with_drafts.content_bytes - accounted("deepseek-v4-flash").content_bytes
    assert added == 3 * 128 * 584  # The window of each, and no compressed keys.


def test_a_hybrid_keeps_one_recurrent_state_a_chunk() -> None:
    with pytest.raises(AccountingError, match=r"try --chunk-size \d+$") as refused:
        accounted(HYBRID)
    block = int(str(refused.value).rsplit(" ", 1)[1])

    figures = accounted(HYBRID, chunk=block)

    states = [each for each in figures.registrations if each.group[0]]
    keys = [each for each in figures.registrations if not each.group[0]]
    assert (len(states), len(keys)) == (36, 12)
    assert sum(each.bytes for each in keys) == key_value(12, 2, 256, tokens=block)
    # vLLM pads the page of a state to that of a block of keys and values.
    assert {each.bytes for each in states} == {each.bytes for each in keys}


def account_of(monkeypatch: pytest.MonkeyPatch, **specs: object) -> Account:
    monkeypatch.setattr("qualify.accounting.kv_cache_specs", lambda *_: specs)
    return account({"architectures": ["Made"]}, Deployment())


def test_what_vllm_never_reuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import bfloat16
    from vllm.v1.kv_cache_interface import CircularBufferSpec, FullAttentionSpec

    shape = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": bfloat16}
    ring, full = CircularBufferSpec(**shape), FullAttentionSpec(**shape)

    assert account_of(monkeypatch, ring=ring, full=full).tensors == 1
    with pytest.raises(AccountingError, match="Made keeps no KV cache"):
        account_of(monkeypatch, ring=ring)


def test_a_window_that_vllm_allocates_in_full_is_kept_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch import bfloat16
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = FullAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=8, dtype=bfloat16, sliding_window=32
    )

    (kept,) = account_of(monkeypatch, layer=spec).registrations

    assert (kept.bytes, kept.group) == (key_value(1, 1, 8), (False, -1))


def test_cross_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import bfloat16
    from vllm.v1.kv_cache_interface import CrossAttentionSpec

    spec = CrossAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=bfloat16)

    with pytest.raises(AccountingError, match="does not serve CrossAttentionSpec"):
        account_of(monkeypatch, layer=spec)


def test_objects_are_rounded_one_by_one() -> None:
    tensors = (
        Registration("a", 1, (False, -1)),
        Registration("b", 2, (False, 1)),
        Registration("c", 3, (True, 1)),
        Registration("d", 4096, (False, -1)),
    )

    assert Account(tensors, 4096).chunk_bytes == (2 + 1 + 1) * 4096
    assert Account(tensors, 4096, separate_object_groups=False).chunk_bytes == 2 * 4096


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("qualify.accounting: ").rstrip()


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert refusal(capsys, str(tmp_path)) == f"no such file: {tmp_path / 'config.json'}"


def test_what_is_not_json_is_named(capsys: pytest.CaptureFixture[str], written: Path) -> None:
    written.write_text("{")

    assert refusal(capsys, str(written)).startswith(f"cannot read {written}: ")


def test_a_config_without_an_architecture_is_refused(
    capsys: pytest.CaptureFixture[str], written: Path
) -> None:
    written.write_text('{"model_type": "llama"}')

    assert "names no architectures" in refusal(capsys, str(written))


def test_an_unknown_architecture_is_named(
    capsys: pytest.CaptureFixture[str], written: Path
) -> None:
    written.write_text('{"architectures": ["NoSuchForCausalLM"]}')

    message = refusal(capsys, str(written))

    assert message.endswith("knows no architecture NoSuchForCausalLM")


def test_ranks_that_do_not_divide_the_heads_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = refusal(capsys, str(CONFIGS / "llama-3-8b.json"), "--tp", "3")

    assert message == (
        "vLLM cannot build LlamaForCausalLM with TP=3: Total number of attention heads (32)"
        " must be divisible by tensor parallel size (3)."
    )


def test_drafts_of_other_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, str(CONFIGS / "llama-3-8b.json"), "--draft-layers", "1")

    assert message == "draft layers are known for DeepSeek-V4 only"


def test_quantized_weights_do_not_matter_but_a_quantized_cache_does() -> None:
    config = read_config(CONFIGS / "llama-3-8b.json")
    weights = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    cache_too = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}

    sixteen = account({**config, "quantization_config": weights}, Deployment())
    eight = account({**config, "quantization_config": cache_too}, Deployment())

    assert sixteen.content_bytes == key_value(32, 8, 128)
    assert eight.content_bytes == sixteen.content_bytes // 2


def test_the_tables_of_the_documentation_are_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIGS)
    text = DOCUMENT.read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if line.startswith(COMMAND) and ".json" in line]

    assert len(commands) == text.count("| model |")
    for command in commands:
        assert main(command.removeprefix(COMMAND).split()) == 0
        assert capsys.readouterr().out in text
