"""All dialects by name, and the mall's config for each."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from platforms.mall.config import MallConfig
from platforms.mall.dialects.amazon import AMAZON
from platforms.mall.dialects.dialect import Dialect
from platforms.mall.dialects.douyin import DOUYIN
from platforms.mall.dialects.ebay import EBAY
from platforms.mall.dialects.jd import JD
from platforms.mall.dialects.lazada import LAZADA
from platforms.mall.dialects.magento import MAGENTO
from platforms.mall.dialects.mercadolibre import MERCADOLIBRE
from platforms.mall.dialects.pinduoduo import PINDUODUO
from platforms.mall.dialects.shopee import SHOPEE
from platforms.mall.dialects.shopify import SHOPIFY
from platforms.mall.dialects.taobao import TAOBAO
from platforms.mall.dialects.woocommerce import WOOCOMMERCE

_ALL = (
    AMAZON, DOUYIN, EBAY, JD, LAZADA, MAGENTO, MERCADOLIBRE, PINDUODUO, SHOPEE, SHOPIFY, TAOBAO, WOOCOMMERCE,
)  # fmt: skip
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in _ALL}


def mall_as(name: str, **changes: object) -> MallConfig:
    """Return the config of a mall that behaves as the platform, with changes."""
    return msgspec.convert({**DIALECTS[name].manners, "platform": name, **changes}, MallConfig)
