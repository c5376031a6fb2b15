"""Registration of the real-text sources."""

from recipes.passages import readers
from recipes.passages.documents import Reader, Source, register

_PUBLIC_DOMAIN = "public domain"
_US_WORK = "public domain (US government work)"
_NLTK = "nltk/nltk_data@5db857e6f7df11eabb5e5665836db9ec8df07e28"


def _passages(
    name: str, domain: str, licence: str, origin: str, reader: Reader, *, permissive: bool = True, prefix: str = ""
) -> Source:
    return register(Source(name, "passages", prefix or name, domain, licence, origin, permissive, reader))


# fmt: off
_passages("novels", "fiction", "public domain (published before 1930, author dead 70+ years)",
          "computationalstylistics/100_english_novels@143e601875d70e195", readers.read_novels)
_passages("craft_articles", "biomedicine", "CC BY",
          "UCDenver-ccp/CRAFT@2abe82b8bb8089448b84937d5f61d8c218011322", readers.read_articles)
_passages("dc_code", "statutes", "public domain (edict of government)",
          "DCCouncil/law-xml@9123af018003a6666851734d92eb3a81862a0f33", readers.read_statutes)
_passages("cfpb_regulations", "regulation", _US_WORK,
          "cfpb/regulations-xml@f00f32f40fed9ad7848ff63da483af876a70095", readers.read_regulations)
_passages("cfpb_complaints", "complaints", "public domain (US government data, published with consent)",
          "Consumer Complaint Database of the CFPB, as in ZiyuYan9/consumer_complaints@ecece4d9228ad0198cd175e5 and "
          "nagakoushik24/Kaiburr-Assignment-Task5@bcf4e5d75df364be8574aa60", readers.read_complaints)
_passages("factbook", "geography", _PUBLIC_DOMAIN,
          "factbook/factbook.json@8662a8b17a784841ab4528631b04090eb2f18", readers.read_factbook)
_passages("peps", "proposals", "public domain / CC0-1.0",
          "python/peps@ba4deeb7969588d937da609008d05bb83a47b1ab", readers.read_rst)
_passages("keps", "engineering plans", "Apache-2.0",
          "kubernetes/enhancements@64765b4b02389318f2113119dd9e491479f9", readers.read_proposals)
_passages("python_docs", "software manuals", "PSF-2.0", "Debian python3.11-doc 3.11.2-6+deb12u9", readers.read_rst)
_passages("django_docs", "software manuals", "BSD-3-Clause",
          "Debian python-django-doc 3:3.2.25-0+deb12u7", readers.read_pages)
_passages("debian_handbook", "administration handbooks", "GPL-2+ or CC BY-SA 3.0",
          "Debian debian-handbook 11.20220922", readers.read_pages, permissive=False)
_passages("freedombox_manual", "administration handbooks", "CC BY-SA 4.0",
          "Debian freedombox-doc-en 23.6.2+deb12u2", readers.read_pages, permissive=False)
_passages("politeness", "requests", "CC BY-SA 3.0",
          "sudhof/politeness@67161948cdb88bae55e1bbf85b12efb71882c027", readers.read_requests, permissive=False)
_passages("goemotions", "comments", "Apache-2.0",
          "monologg/GoEmotions-pytorch@b75f9d3a8b76bc1060687925b04ca98a", readers.read_comments, permissive=False)
_passages("wikitext2_test", "encyclopaedia", "CC BY-SA 3.0",
          "Tylogi/TyloQuant@7989d038b13ca737da11a95fb90e77ae059f33c0", readers.read_wikitext, permissive=False)
_passages("inaugural", "speeches", _PUBLIC_DOMAIN, _NLTK, readers.read_inaugural, prefix="nltk")
_passages("state_union", "speeches", _PUBLIC_DOMAIN, _NLTK, readers.read_state_union, prefix="nltk")
_passages("masc", "mixed", "ANC open licence", _NLTK, readers.read_masc, prefix="nltk")
_passages("movie_reviews", "film reviews", "CC BY 4.0 (as declared by nltk_data)",
          _NLTK, readers.read_movie_reviews, permissive=False, prefix="nltk")
# fmt: on
