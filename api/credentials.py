"""What looks like a credential: refused wherever it would become public, and never echoed (R-1, R-110).

A net, not a proof: known token formats, private keys, passwords in addresses, and telling names of variables.
"""

import re

# Every pattern begins with something rare and looks at a bounded stretch after it: the time is linear in the text,
# whatever a client sends.
_FORMATS = re.compile(
    r"""
    -----BEGIN\ [A-Z ]{0,40}PRIVATE\ KEY
    | \b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}\b               # AWS access key ids
    | \bgh[pousr]_[a-z0-9]{30} | \bgithub_pat_[a-z0-9_]{20}           # GitHub
    | \bglpat-[a-z0-9_-]{16}                                          # GitLab
    | \bxox[abeoprs]-[a-z0-9-]{10} | \bxapp-[a-z0-9-]{10}             # Slack
    | \bhf_[a-z0-9]{30}                                               # Hugging Face
    | \bsk-(?:proj|ant|svcacct)-[a-z0-9_-]{20} | \bsk-[a-z0-9]{32}    # model providers
    | \b[rs]k_(?:live|test)_[a-z0-9]{16}                              # Stripe
    | \bAIza[0-9a-z_-]{30} | \bya29\.[0-9a-z_-]{20}                   # Google
    | \bnpm_[a-z0-9]{30} | \bpypi-[a-z0-9_-]{30}                      # package registries
    | \bdop_v1_[a-f0-9]{40} | \bhvs\.[a-z0-9_-]{20}                   # DigitalOcean, Vault
    | (?<=[a-z0-9_-])\.eyJ[a-z0-9_-]{10}                              # JWT
    | ://[^\s/@:]{0,64}:[^\s/@]{1,128}@                               # password in an address
    | [?&;](?:X-Amz-Signature|X-Goog-Signature|AccountKey|SharedAccessKey|sig)=[a-z0-9%+/=]{16}
    | \b(?:bearer|basic)\s{1,4}[a-z0-9._~+/=-]{16}
    """,
    re.VERBOSE | re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    r"(?:passw(?:or)?d|passphrase|secret_?(?:access_?)?key|client_?secret|api[_-]?key|access[_-]?token|auth[_-]?token"
    r"|private_?key)[a-z0-9_]{0,20}['\"]?\s{0,3}[=:]\s{0,3}['\"]?(?!/|env:)[^\s'\"$<{(]{4}",
    re.IGNORECASE,
)
_AWS_SECRET = re.compile(r"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=[^0-9]*[0-9])[A-Za-z0-9/+]{40}")
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
    return bool(
        _FORMATS.search(value) or _ASSIGNMENT.search(value) or (len(value) == 40 and _AWS_SECRET.fullmatch(value))
    )


def names_credential(name: str, value: str) -> bool:
    """Does a variable's name say that its value is a credential? A path or a reference as value is none."""
    if _PLACES.match(value):
        return False
    if _NAMES.search(name):
        return True
    return bool(_WEAK_NAMES.search(name) and _RANDOM.match(value) and not value.isdigit())
