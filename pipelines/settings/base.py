"""The base of all settings types."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen, and a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
