"""The mail server of a configuration."""

from pathlib import Path

from actors.runtime.notices.mail import MailServer
from penstock.errors import UsageError
from penstock.node.config import Config

__all__ = ["mail_server"]


def mail_server(config: Config) -> MailServer | None:
    """Return the server for notices, None if none is configured. Raises UsageError if a file or a reference that it
    needs leads nowhere."""
    if not config.smtp:
        return None
    if config.smtp_ca and not Path(config.smtp_ca).is_file():
        raise UsageError(f"smtp_ca: {config.smtp_ca}: no such file")
    config.secret("smtp_password")
    host, _, port = config.smtp.rpartition(":")
    return MailServer(
        host=host.strip("[]"),
        port=int(port),
        sender=config.mail_from or config.mail_to[0],
        to=config.mail_to,
        user=config.smtp_user,
        password=config.smtp_password,
        ca=config.smtp_ca,
    )
