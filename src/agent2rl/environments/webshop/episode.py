"""One episode in a shop, from the search page to the purchase.

Actions are `search[words]` and `click[name on the page]`; `choose[…]` is the same as `click[…]`. Any other
text, and a click on something that is not on the page, changes nothing. Searching works from every page. The
official search has special prefixes for its authors (`<r>`, `<a>`, `<c>` and `<q>` before the words); here
they are ordinary words.

Not covered: URLs that look like those of another page because a query contains the page's name.
"""

import re
from typing import Literal, NamedTuple

from agent2rl.environments.webshop import pages
from agent2rl.environments.webshop.product import Product
from agent2rl.environments.webshop.reward import PurchaseScore, score_purchase
from agent2rl.environments.webshop.shop import Shop, ShoppingGoal

Page = Literal["start", "results", "item", "sub-page", "done"]
_ACTION = re.compile(r"(.+)\[(.+)\]")
_CLICKS = ("click", "choose")
_SUB_PAGES = {name.lower(): name for name in pages.SUB_PAGES}


class AvailableActions(NamedTuple):
    """Actions that the page offers."""

    search_bar: bool
    """Whether the page has a search bar; searching works without one."""
    clickables: tuple[str, ...]


class PageContents(NamedTuple):
    """Contents of the page, for user interfaces that draw it."""

    found: int
    """Number of results of the last search."""
    number: int
    """Number of the page of results."""
    listed: tuple[Product, ...]
    """The results on this page."""
    product: Product | None
    """The product on the page."""
    sub_page: str
    """Title of the product's sub-page, as in `pages`."""


class WebshopEpisode:
    __slots__ = (
        *("_attributes", "_available", "_found", "_layout", "_number", "_product", "_published"),
        *("_sub_page", "goal", "observation", "options", "page", "score", "shop", "taken"),
    )

    def __init__(
        self,
        shop: Shop,
        goal: ShoppingGoal,
        *,
        with_attributes: bool = False,
        as_published: bool = False,
        layout: pages.PageLayout = pages.OFFICIAL,
    ) -> None:
        """Begin an episode. `with_attributes` adds a sub-page of attributes, officially `show_attrs`."""
        self.shop, self.goal = shop, goal
        self._attributes, self._published, self._layout = with_attributes, as_published, layout
        self.page: Page = "start"
        self.options: dict[str, str] = {}
        """Options chosen for the product on the page: name → value."""
        self.score: PurchaseScore | None = None
        """Score of the purchase, once it is made."""
        self.taken = False
        """Whether the last action could be taken. An option that is chosen does not change the page."""
        self._found: tuple[Product, ...] = ()
        self._number = 1
        self._product: Product | None = None
        self._sub_page = ""
        self._available: AvailableActions | None = None
        self._show_page()

    @property
    def available(self) -> AvailableActions:
        """The actions that the page offers, in the official order and spelling."""
        if self._available is None:
            buttons = [button.lower() for button in self._list_buttons()]
            links = [product.asin.lower() for product in self._list_products()]
            names = tuple(dict.fromkeys([*buttons, *links, *self._list_options()]))
            self._available = AvailableActions(self.page == "start", names)
        return self._available

    @property
    def seen(self) -> PageContents:
        sub_page = self._sub_page if self.page == "sub-page" else ""
        return PageContents(len(self._found), self._number, self._list_products(), self._product, sub_page)

    def step(self, action: str) -> str:
        """Take an action, and return the observation. After the purchase nothing changes."""
        self.taken = False
        if self.page != "done":
            name, argument = _parse_action(action)
            if name == "search" and argument:
                self.taken = True
                self._run_search(argument)
            elif name in _CLICKS and argument != "search" and argument in self.available.clickables:
                self.taken = True
                self._click_button(argument)
        return self.observation

    def _show_page(self) -> None:
        """Render the current page. Its available actions are computed on demand."""
        self._available = None
        self.observation = self._layout.text(self._render_page())

    def _run_search(self, query: str) -> None:
        self._found = self.shop.search(query)
        self._turn_page(1)

    def _turn_page(self, number: int) -> None:
        """Go to a page of the results, and forget the chosen options."""
        self.page, self._number, self._product, self.options = "results", number, None, {}
        self._show_page()

    def _click_button(self, name: str) -> None:
        """Handle a click. As officially, buttons come first: an option with the name of a button is one."""
        product = self._product
        if name == pages.BUY.lower() and product is not None:
            self._buy_product(product)
        elif name == pages.BACK.lower():
            self.page, self._found, self._product, self.options = "start", (), None, {}
            self._show_page()
        elif name == pages.NEXT.lower() and self.page == "results":
            self._turn_page(self._number + 1)
        elif name == pages.PREVIOUS.lower() and self.page == "results":
            self._turn_page(self._number - 1)
        elif name == pages.PREVIOUS.lower() and self.page == "item":
            self._turn_page(self._number)
        elif name in _SUB_PAGES and product is not None:
            self.page, self._sub_page = "sub-page", _SUB_PAGES[name]
            self._show_page()
        else:
            self._open_product(name)

    def _open_product(self, name: str) -> None:
        """Open a product of the results, or choose an option of the product on the page."""
        if self.page == "item":  # looks the same whatever is chosen, so it is not rendered again
            self.options[self._list_options()[name]] = name
            return
        if self.page == "results":
            self._product = next(product for product in self._list_products() if product.asin.lower() == name)
        self.page = "item"
        self._show_page()

    def _buy_product(self, product: Product) -> None:
        price = self.shop.prices[product.asin]
        self.score = score_purchase(
            product, self.goal, price, self.options.values(), as_published=self._published
        )
        self.page = "done"
        self._show_page()

    def _list_products(self) -> tuple[Product, ...]:
        first = (self._number - 1) * self._layout.shown
        return self._found[first : first + self._layout.shown] if self.page == "results" else ()

    def _list_options(self) -> dict[str, str]:
        """Return value → name of the options on the page. If names share a value, the last one wins."""
        if self.page != "item" or self._product is None:
            return {}
        return {value: name for name, values in self._product.options.items() for value in values}

    def _list_buttons(self) -> tuple[str, ...]:
        if self.page == "start":
            return (pages.SEARCH,)
        if self.page == "results":
            return (pages.BACK, *((pages.PREVIOUS,) if self._number > 1 else ()), pages.NEXT)
        if self.page == "item":
            return (pages.BACK, pages.PREVIOUS, *pages.list_sub_pages(self._attributes), pages.BUY)
        return (pages.BACK, pages.PREVIOUS) if self.page == "sub-page" else ()

    def _render_page(self) -> pages.Texts:
        instruction, product = self.goal.instruction if self._layout.head else None, self._product
        if self.score is not None and product is not None:
            return pages.render_done(product.asin, self.options, self.score.reward)
        if self.page == "results":
            return pages.render_results(instruction, self._list_products(), self._number, len(self._found))
        if product is None:
            return pages.render_start(self.goal.instruction)
        if self.page == "sub-page":
            return pages.render_sub_page(instruction, product, self._sub_page)
        return pages.render_item(instruction, product, self._attributes)


def _parse_action(action: str) -> tuple[str, str]:
    """Return the name and the lower-cased argument, both empty if the text is no action."""
    match = _ACTION.match(action)
    return (match[1], match[2].lower()) if match else ("", "")
