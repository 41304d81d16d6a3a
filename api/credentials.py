"""What looks like a credential: refused wherever it would become public, and never echoed (R-1, R-110).

A net, not a proof: known token formats, private keys, passwords in addresses, and telling names of variables.
"""

import re

_FORMATS = re.compile(
    r"""
    -----BEGIN [A-Z ]*PRIVATE\ KEY
    | \b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}\b                # AWS access key ids
    | \bgh[pousr]_[A-Za-z0-9]{30,} | \bgithub_pat_[A-Za-z0-9_]{20,}    # GitHub
    | \bglpat-[A-Za-z0-9_-]{16,}                                        # GitLab
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,} | \bxapp-[A-Za-z0-9-]{10,}       # Slack
    | \bhf_[A-Za-z0-9]{20,}                                             # Hugging Face
    | \bsk-[A-Za-z0-9_-]{20,} | \b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}  # model providers, Stripe
    | \bAIza[0-9A-Za-z_-]{30,} | \bya29\.[0-9A-Za-z_-]{20,}             # Google
    | \bnpm_[A-Za-z0-9]{30,} | \bpypi-[A-Za-z0-9_-]{30,}                # package registries
    | \bdop_v1_[a-f0-9]{40,} | \bhvs\.[A-Za-z0-9_-]{20,}                # DigitalOcean, Vault
    | \beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.                  # JWT
    | [a-z][a-z0-9+.-]*://[^\s/@:]*:[^\s/@]+@                           # password in an address
    | (?:[?&;]|\b)(?:X-Amz-Signature|X-Goog-Signature|AccountKey|SharedAccessKey|sig)=[A-Za-z0-9%+/=]{16,}
    | \b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{16,}
    """,
    re.VERBOSE | re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    r"(?:^|[\s'\";&?-])[A-Za-z0-9_.-]*"
    r"(?:passw(?:or)?d|passphrase|secret[_-]?(?:access[_-]?)?key|client[_-]?secret|api[_-]?key|access[_-]?token"
    r"|auth[_-]?token|private[_-]?key)[A-Za-z0-9_]*['\"]?\s*[=:]\s*['\"]?[^\s'\"$]{4,}",
    re.IGNORECASE,
)
_AWS_SECRET = re.compile(r"^(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9/+]{40}$")
_NAMES = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRETS|ACCESS_?KEY|PRIVATE_?KEY|SIGNING_?KEY|ENCRYPTION_?KEY"
    r"|CREDENTIALS?|CREDS|AUTHORIZATION|COOKIE|CONNECTION_STRING)(?:_(?:KEY|VALUE|B64|BASE64|JSON|PEM|[0-9]+))*$",
    re.IGNORECASE,
)
_WEAK_NAMES = re.compile(r"(?:^|_)(?:TOKEN|API_?KEY|AUTH_?KEY|ACCESS_?KEY_ID)(?:_[0-9]+)?$", re.IGNORECASE)
"""Also names of harmless things (PAD_TOKEN=<pad>, MAX_TOKEN=512): the value has to be long and to look random."""
_RANDOM = re.compile(r"^[A-Za-z0-9._~+/=:-]{8,}$")
_PLACES = re.compile(r"^(?:/[^\s]*|env:[A-Za-z_][A-Za-z0-9_]*|\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|)$")
"""Values that only say where a credential is: a path, a reference, nothing."""


def looks_like_credential(value: str) -> bool:
    """Does a public text hold something in a known format of credentials?"""
    return bool(_FORMATS.search(value) or _ASSIGNMENT.search(value) or _AWS_SECRET.match(value))


def names_credential(name: str, value: str) -> bool:
    """Does a variable's name say that its value is a credential? A path or a reference as value is none."""
    if _PLACES.match(value):
        return False
    if _NAMES.search(name):
        return True
    return bool(_WEAK_NAMES.search(name) and _RANDOM.match(value) and not value.isdigit())
