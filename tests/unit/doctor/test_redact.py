"""Secrets do not reach the output."""

from __future__ import annotations

import pytest

from railweld.doctor.catalogue import load
from railweld.doctor.diagnosis import Doctor
from railweld.doctor.redact import redact
from railweld.doctor.report import as_json, as_text

SECRET = "Zx9kQ2vLmN4pRt7w"


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f'"client_secret": "{SECRET}"',
        f"export HF_TOKEN={SECRET}",
        f"--api-key {SECRET} --epochs 3",
        f"WANDB_API_KEY: {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}",
        f"curl -H 'X-Auth-Token: {SECRET}'",
        f"https://user:{SECRET}@registry.example/v2/",
        f"s3 AWS_SECRET_ACCESS_KEY={SECRET}",
        f"Set-Cookie: session={SECRET}; Path=/",
        f"cloned with ghp_{SECRET}{SECRET}",
        f"hf_{SECRET}{SECRET}",
        f"munge credential MUNGE:{SECRET}:",
        f"passphrase = '{SECRET} and more'",
        f"MYSQL_PWD={SECRET}",
    ],
)
def test_secret_is_hidden(text: str) -> None:
    assert SECRET not in redact(f"2026-11-30 02:57:25 gpu1 trainer: {text} tail")


@pytest.mark.parametrize(
    "text",
    [
        "142 tokens/s, tokens: 1048576, max_tokens=4096",
        "gpu1:88:99 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE; OOB eth0:10.0.0.1<0>",
        "key error in state_dict: 'layers.0.weight'",
        "http://registry.example:5000/v2/train:v3",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_evidence_is_redacted_in_text_and_json() -> None:
    doctor = Doctor(load())
    doctor.read_blocks("log", [f"CUDA out of memory HF_TOKEN={SECRET}\n".encode()])
    diagnosis = doctor.diagnose()
    assert SECRET not in as_text(diagnosis, width=100, entries=1, paint=lambda text, _: text)
    assert SECRET not in str(as_json(diagnosis))
