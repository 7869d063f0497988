"""What commands share: their options, what they print, and how they talk with a person."""
