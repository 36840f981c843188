"""Other names of states and countries, for matching answers. Names are in lower case without accents."""

import re

_STATES = """
AL Alabama, AK Alaska, AZ Arizona, AR Arkansas, CA California, CO Colorado, CT Connecticut, DE Delaware,
FL Florida, GA Georgia, HI Hawaii, ID Idaho, IL Illinois, IN Indiana, IA Iowa, KS Kansas, KY Kentucky,
LA Louisiana, ME Maine, MD Maryland, MA Massachusetts, MI Michigan, MN Minnesota, MS Mississippi, MO Missouri,
MT Montana, NE Nebraska, NV Nevada, NH New Hampshire, NJ New Jersey, NM New Mexico, NY New York,
NC North Carolina, ND North Dakota, OH Ohio, OK Oklahoma, OR Oregon, PA Pennsylvania, RI Rhode Island,
SC South Carolina, SD South Dakota, TN Tennessee, TX Texas, UT Utah, VT Vermont, VA Virginia, WA Washington,
WV West Virginia, WI Wisconsin, WY Wyoming
"""
STATE_CODES: dict[str, str] = {
    code: name.lower() for code, name in re.findall(r"([A-Z]{2}) ([\w ]+)", _STATES)
}
"""Postal codes of the states of the USA. They are read only in upper case."""
STATES = frozenset(STATE_CODES.values())

OTHER_NAMES = {
    "usa": "united states",
    "us": "united states",
    "united states of america": "united states",
    "uk": "united kingdom",
    "great britain": "united kingdom",
    "uae": "united arab emirates",
    "holland": "netherlands",
    "czechia": "czech republic",
    "turkiye": "turkey",
    "burma": "myanmar",
    "cabo verde": "cape verde",
    "ivory coast": "cote divoire",
    "timor leste": "east timor",
    "swaziland": "eswatini",
    "macedonia": "north macedonia",
    "russian federation": "russia",
    "viet nam": "vietnam",
    "lao pdr": "laos",
    "brunei darussalam": "brunei",
    "syrian arab republic": "syria",
    "republic of korea": "south korea",
    "korea republic": "south korea",
    "dprk": "north korea",
    "democratic peoples republic of korea": "north korea",
    "prc": "china",
    "peoples republic of china": "china",
    "republic of china": "taiwan",
    "drc": "democratic republic of congo",
    "dr congo": "democratic republic of congo",
    "congo kinshasa": "democratic republic of congo",
    "congo brazzaville": "republic of congo",
    "vatican": "vatican city",
    "holy see": "vatican city",
    "new york state": "new york",
    "washington state": "washington",
    "district of columbia": "washington dc",
    "nyc": "new york city",
}
