"""Patterns of code, logs and running text in several languages, and lists of choices."""

from __future__ import annotations

import random
import re

from .pattern import Pattern

SYLLABLES = re.findall(r"\w+", "ba ca do fe gi ha in jo ka lu mer no or pe qui ra sol ta ul ven wy xan yor zu")


def _names(count: int) -> tuple[str, ...]:
    """Return different made-up names of one to three words: shared beginnings and ends, as a catalogue has them."""
    rng = random.Random(0)
    names: dict[str, None] = {}
    while len(names) < count:
        words = ("".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))).capitalize() for _ in range(rng.randint(1, 3)))
        names[" ".join(words)] = None
    return tuple(names)


MANY_NAMES = _names(10_000)
COUNTRIES = tuple(
    "Argentina Australia Brazil Canada Chile China Colombia Egypt Ethiopia France Germany India Indonesia Ireland "
    "Italy Japan Kenya Mexico Morocco Netherlands Nigeria Norway Pakistan Peru Poland Portugal Romania Senegal Spain "
    "Sweden Türkiye Ukraine Uruguay Vietnam Zambia Côte_d'Ivoire New_Zealand South_Africa United_Kingdom".replace(
        " ", "|"
    )
    .replace("_", " ")
    .split("|")
)

TEXTS: tuple[Pattern, ...] = (
    # ------------------------------------------------------------------------------------------------- code
    Pattern(
        "dotted name",
        "code",
        r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*",
        ("numpy.random.default_rng", "__init__", "maskwright.runtime.torch_ops.mask_logits"),
        ("numpy..random", "9lives", "Numpy.random", "a.b."),
    ),
    Pattern(
        "camel case",
        "code",
        r"[a-z]+([A-Z][a-z0-9]*)*",
        ("getElementsByTagName", "x", "parseHttp2Frame"),
        ("GetElements", "get_elements", "x9"),
    ),
    Pattern(
        "JSON string",
        "code",
        r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"',
        (
            r'"The \"quick\" brown fox\njumps over the lazy dog \u2014 and then, in C:\\temp, it stops for a while."',
            '""',
            '"naïve café, 東京, 🙂"',
        ),
        ('"unterminated', r'"bad \x escape"', '"line\nbreak"', "'single'"),
    ),
    Pattern(
        "block comment",
        "code",
        r"/\*([^*]|\*+[^*/])*\*+/",
        (
            "/* Returns the number of bytes written,\n * or -1 with errno set when the file was closed.\n **/",
            "/**/",
            "/***** a * b / c *****/",
        ),
        ("/* open", "/* one */ two */", "// line", "/*/"),
    ),
    Pattern(
        "HTML tag",
        "code",
        r"<[a-z][a-z0-9]*(\s+[a-z-]+(=\"[^\"<]*\")?)*\s*/?>",
        (
            '<a href="https://example.com/path?x=1&amp;y=2" class="btn btn-primary" data-id="42" target="_blank">',
            "<br/>",
            "<input disabled >",
        ),
        ("<1a>", '<a href="x>', "</a>", "< a>"),
    ),
    Pattern(
        "SQL query",
        "code",
        r"SELECT (\*|[a-z_]+(, ?[a-z_]+)*) FROM [a-z_]+( WHERE [a-z_]+ ?(=|<>|<=|>=|<|>) ?('[^']*'|\d+)"
        r"( (AND|OR) [a-z_]+ ?(=|<>|<=|>=|<|>) ?('[^']*'|\d+))*)?( ORDER BY [a-z_]+( ASC| DESC)?)?( LIMIT \d+)?;",
        (
            "SELECT id, first_name, last_name, created_at FROM customers WHERE country = 'France' AND age >= 18 "
            "ORDER BY created_at DESC LIMIT 100;",
            "SELECT * FROM orders;",
            "SELECT total FROM invoices WHERE paid = 0;",
        ),
        ("SELECT FROM orders;", "select * from orders;", "SELECT * FROM orders", "SELECT a FROM b WHERE c = 'd;"),
    ),
    Pattern(
        "function call",
        "code",
        r"[a-z_]+\(([a-z_]+=(\"[^\"\\\n]*\"|-?\d+(\.\d+)?|true|false|null)"
        r"(, [a-z_]+=(\"[^\"\\\n]*\"|-?\d+(\.\d+)?|true|false|null))*)?\)",
        (
            'search_flights(origin="Paris CDG", destination="New York JFK", passengers=2, max_price=850.5)',
            "get_time()",
            'send_mail(to="jane@example.com", subject="Minutes of the meeting on Tuesday", urgent=false)',
        ),
        ('search_flights(origin="Paris)', "get_time", "get_time(x)", "f(a=1,b=2)"),
    ),
    Pattern(
        "Python signature",
        "code",
        r"(async )?def [a-z_][a-z0-9_]*\(([a-z_][a-z0-9_]*(: [A-Za-z_\[\], |.]+)?( = [^,()\n]+)?"
        r"(, [a-z_][a-z0-9_]*(: [A-Za-z_\[\], |.]+)?( = [^,()\n]+)?)*)?\)( -> [A-Za-z_\[\], |.]+)?:",
        (
            "def compile_regex(pattern: str, vocab: Vocabulary, budget: Budget | None = None) -> TransitionTable:",
            "async def main():",
            "def area(width, height = 2):",
        ),
        ("def 1x():", "def f(:", "def f()", "function f():"),
    ),
    Pattern(
        "Unix path",
        "code",
        r"(/[^/\x00\n]+)+/?",
        ("/usr/local/lib/python3.11/site-packages/numpy/core/_multiarray_umath.so", "/home/jane doe/résumé.pdf", "/a/"),
        ("usr/local", "//", "/a//b", "/"),
    ),
    Pattern(
        "Windows path",
        "code",
        r'[A-Za-z]:\\([^\\/:*?"<>|\r\n]+\\)*[^\\/:*?"<>|\r\n]*',
        ("C:\\Users\\Jane Doe\\Documents\\Quarterly report (final).docx", "D:\\", "e:\\data\\2024\\"),
        ("C:/Users", "CC:\\x", "C:\\a|b", "C:\\\\x"),
    ),
    Pattern(
        "CSV line",
        "code",
        r'("([^"]|"")*"|[^",\n]*)(,("([^"]|"")*"|[^",\n]*)){3}',
        ('1042,"Doe, Jane","12 rue de Rivoli, 75001 Paris",1984-03-12', ",,,", 'a,"b ""quoted"" b",c,d'),
        ("a,b,c", "a,b,c,d,e", 'a,"b,c,d', 'a,b"b,c,d'),
    ),
    Pattern(
        "Markdown link",
        "code",
        r"\[[^\]\n]+\]\(https?://[^\s)]+\)",
        (
            "[the Python documentation on regular expressions](https://docs.python.org/3/library/re.html#module-re)",
            "[x](http://y)",
            "[Übersicht, Teil 2](https://example.de/übersicht?teil=2)",
        ),
        ("[](https://x)", "[x] (https://y)", "[x](ftp://y)", "[x](https://y z)"),
    ),
    # ------------------------------------------------------------------------------------------------- logs
    Pattern(
        "access log",
        "logs",
        r"\d{1,3}(\.\d{1,3}){3} \S+ \S+ \[\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4}\] "
        r'"(GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH) [^\s"]+ HTTP/\d\.\d" [1-5]\d{2} (\d+|-)( "[^"]*" "[^"]*")?',
        (
            '203.0.113.42 - frank [10/Oct/2023:13:55:36 -0700] "GET /apache_pb.gif?size=large HTTP/1.0" 200 2326 '
            '"http://www.example.com/start.html" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML)"',
            '127.0.0.1 - - [01/Jan/2024:00:00:00 +0000] "POST /api/v1/items HTTP/1.1" 404 -',
            '10.1.2.3 - - [29/Feb/2024:23:59:59 +0100] "DELETE /x HTTP/1.1" 204 0',
        ),
        (
            '127.0.0.1 - - [01/Jan/2024:00:00:00 +0000] "FETCH /api HTTP/1.1" 404 -',
            '127.0.0.1 - - [01/Jan/2024:00:00:00] "GET /api HTTP/1.1" 404 -',
            '127.0.0.1 - - [01/Jan/2024:00:00:00 +0000] "GET /api HTTP/1.1" 604 -',
        ),
    ),
    Pattern(
        "system log",
        "logs",
        r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d{2}:\d{2}:\d{2} [a-zA-Z0-9.-]+ "
        r"[a-zA-Z0-9_./-]+(\[\d+\])?: [^\n]*",
        (
            "Feb  5 17:32:18 mail-01.example.com postfix/smtpd[28714]: connect from unknown[198.51.100.7]; "
            "client certificate not presented, continuing without verification",
            "Oct 11 22:14:15 router kernel: eth0: link up, 1000 Mbps, full duplex",
            "Dec 31 23:59:59 h cron[1]: ",
        ),
        (
            "Okt 11 22:14:15 router kernel: eth0: link up",
            "Oct 11 22:14:15 router kernel eth0 link up",
            "Oct 11 22:14 router kernel: eth0",
        ),
    ),
    Pattern(
        "application log",
        "logs",
        r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2},\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) +"
        r"\[[\w.-]+\] [\w.]+:\d+ - [^\n]+",
        (
            "2024-05-17 08:30:00,123 ERROR    [worker-7] app.billing.invoices:218 - could not reach the payment "
            "provider after 3 attempts: connection reset by peer (invoice 4711, customer 0815)",
            "2024-05-17 08:30:00,124 INFO [main] app:1 - started",
            "2024-05-17 08:30:00,125 DEBUG [a.b-c] x.y.z:99 - größe=5",
        ),
        (
            "2024-05-17 08:30:00.123 ERROR [worker-7] app:218 - no",
            "2024-05-17 08:30:00,123 FATAL [worker-7] app:218 - no",
            "2024-05-17 08:30:00,123 ERROR [worker 7] app:218 - no",
        ),
    ),
    Pattern(
        "cluster log",
        "logs",
        r"[IWEF]\d{4} \d{2}:\d{2}:\d{2}\.\d{6} +\d+ [a-z_]+\.go:\d+\] [^\n]+",
        (
            'E0517 08:30:00.123456       1 reflector.go:147] failed to list *v1.Pod: Get "https://10.96.0.1:443/api/v1/'
            'pods?limit=500": dial tcp 10.96.0.1:443: connect: connection refused',
            "I0101 00:00:00.000000 12345 main.go:1] ok",
            'W1231 23:59:59.999999 7 watch_cache.go:42] "slow watcher" client="controller" pending=100',
        ),
        ("X0517 08:30:00.123456 1 a.go:1] x", "E0517 08:30:00.123 1 a.go:1] x", "E0517 08:30:00.123456 1 a.py:1] x"),
    ),
    Pattern(
        "key-value log",
        "logs",
        r'[a-z_]+=("[^"\n]*"|[^\s"=]+)( [a-z_]+=("[^"\n]*"|[^\s"=]+))*',
        (
            'ts=2024-05-17T08:30:00Z level=warn msg="queue is nearly full" queue=embeddings size=9812 limit=10000 '
            'host=worker-7.internal trace_id=0af7651916cd43dd8448eb211c80319c retry_after="30 s"',
            "a=b",
            'msg="" ok=true',
        ),
        ("a = b", "a=b  c=d", 'msg="open', "A=b"),
    ),
    Pattern(
        "stack frame",
        "logs",
        r'  File "[^"\n]+", line \d+, in ([A-Za-z_][A-Za-z0-9_]*|<module>|<lambda>)\n    [^\n]+',
        (
            '  File "/srv/app/billing/invoices.py", line 218, in send_invoice\n    response = client.post(url, body)',
            '  File "<stdin>", line 1, in <module>\n    1 / 0',
            '  File "a.py", line 7, in f\n    g()',
        ),
        (
            'File "a.py", line 7, in f\n    g()',
            '  File "a.py", line x, in f\n    g()',
            '  File "a.py", line 7, in f\n  g()',
        ),
    ),
    # ------------------------------------------------------------------------------------------------- text
    Pattern(
        "sentiment",
        "text",
        r"(very )?(positive|negative)|neutral|mixed",
        ("positive", "very negative", "neutral", "mixed"),
        ("very neutral", "Positive", "negative.", "pos"),
    ),
    Pattern(
        "thought and action",
        "text",
        r"Thought: [^\n]+\nAction: (search|lookup|finish)\[[^\]\n]+\]",
        (
            "Thought: The question asks for the year in which the bridge was opened, so I should first look for the "
            "bridge itself and then read its history.\nAction: search[Øresund Bridge]",
            "Thought: I know.\nAction: finish[42]",
            "Thought: Encore une étape.\nAction: lookup[ouvert en]",
        ),
        ("Thought: I know. Action: finish[42]", "Thought: x\nAction: think[x]", "Thought: x\nAction: finish[]"),
    ),
    Pattern(
        "multiple choice",
        "text",
        r"Reasoning: [^\n]+\n\nAnswer: \([A-E]\)",
        (
            "Reasoning: Mercury has no moons, and neither has Venus, so exactly two of the eight planets have none; "
            "the other options count dwarf planets.\n\nAnswer: (B)",
            "Reasoning: -\n\nAnswer: (A)",
            "Reasoning: 因為水在零度結冰。\n\nAnswer: (E)",
        ),
        ("Answer: (B)", "Reasoning: x\nAnswer: (B)", "Reasoning: x\n\nAnswer: (F)", "Reasoning: x\n\nAnswer: B"),
    ),
    Pattern(
        "bullet list",
        "text",
        r"(- [^\n]+\n){3,7}",
        (
            "- Preheat the oven to 200 degrees.\n- Whisk the eggs with the sugar until pale.\n- Fold in the flour.\n"
            "- Bake for 35 minutes, then let it cool in the tin.\n",
            "- a\n- b\n- c\n",
            "- ä\n- ö\n- ü\n- ß\n- é\n- è\n- ê\n",
        ),
        ("- a\n- b\n", "- a\n- b\n- c", "* a\n* b\n* c\n", "- x\n" * 8),
    ),
    Pattern(
        "chess moves",
        "text",
        r"(\d+\. ?(O-O(-O)?|[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](=[QRBN])?)[+#]?"
        r"( (O-O(-O)?|[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](=[QRBN])?)[+#]?)? ?)+(1-0|0-1|1/2-1/2)?",
        (
            "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 6. Re1 b5 7. Bb3 d6 8. c3 O-O 9. h3 h6 10. d4 1/2-1/2",
            "1.f3 e5 2.g4 Qh4# 0-1",
            "57. exd8=Q+",
        ),
        ("1. e9", "e4 e5", "1. e4 e5 2", "1. Xf3"),
    ),
    Pattern(
        "citation",
        "text",
        r"[A-Z][a-z]+, [A-Z]\.( [A-Z]\.)*(, (& )?[A-Z][a-z]+, [A-Z]\.( [A-Z]\.)*)* \((19|20)\d{2}\)\. [^.\n]+\. "
        r"[^,\n]+, \d+(\(\d+\))?, \d+-\d+\.",
        (
            "Hopcroft, J. E., & Karp, R. M. (1973). An algorithm for maximum matchings in bipartite graphs. SIAM "
            "Journal on Computing, 2(4), 225-231.",
            "Brzozowski, J. A. (1964). Derivatives of regular expressions. Journal of the ACM, 11(4), 481-494.",
            "Rabin, M., Scott, D. (1959). Finite automata. IBM Journal, 3, 114-125.",
        ),
        (
            "Brzozowski (1964). Derivatives. Journal, 11(4), 481-494.",
            "Brzozowski, J. A. (64). Derivatives. Journal, 11(4), 481-494.",
            "Brzozowski, J. A. (1964). Derivatives. Journal, 11(4), 481-494",
        ),
    ),
    Pattern(
        "user name, counted",
        "text",
        r"@[A-Za-z_][A-Za-z0-9_]{2,29}",
        ("@jane_doe_1984", "@abc", "@" + "x" * 30),
        ("@ab", "jane", "@1abc", "@" + "x" * 31),
    ),
    Pattern(
        "one hundred characters",
        "text",
        r"[^\n]{1,100}",
        ("The meeting moved to Thursday; please bring last quarter's numbers.", "a", "日本語の文章" * 16),
        ("", "x" * 101, "a\nb"),
    ),
    # ----------------------------------------------------------------------------------------- multilingual
    Pattern(
        "Russian name",
        "multilingual",
        r"[А-ЯЁ][а-яё]+(-[А-ЯЁ][а-яё]+)?( [А-ЯЁ][а-яё]+){1,2}",
        ("Анна-Мария Сергеевна Королёва", "Лев Толстой", "Пётр Ильич Чайковский"),
        ("анна Королёва", "Лев", "Lev Толстой", "Лев  Толстой"),
    ),
    Pattern(
        "Japanese date",
        "multilingual",
        r"(令和|平成|昭和)(元|[1-9]\d?)年(1[0-2]|[1-9])月([12]\d|3[01]|[1-9])日(\([月火水木金土日]\))?",
        ("令和6年5月17日(金)", "昭和64年1月7日", "平成元年1月8日"),
        ("令和6年13月17日", "明治6年5月17日", "令和6年5月17日(空)"),
    ),
    Pattern(
        "Japanese text",
        "multilingual",
        r"[ぁ-んァ-ヶー一-龯々、。「」]+",
        ("「吾輩は猫である。名前はまだ無い。」", "カタカナ", "東京都、人々"),
        ("Tokyo", "東京 都", "", "東京!"),
    ),
    Pattern(
        "German address",
        "multilingual",
        r"[A-ZÄÖÜ][a-zäöüß]+(straße|weg|platz|allee) \d{1,4}[a-z]?, \d{5} "
        r"[A-ZÄÖÜ][a-zäöüß]+( (an der|am) [A-ZÄÖÜ][a-zäöüß]+)?",
        ("Königstraße 12b, 60311 Frankfurt am Main", "Mühlweg 3, 80331 München", "Ärzteplatz 1000, 01067 Öhringen"),
        ("königstraße 12b, 60311 Frankfurt", "Königstrasse 12b, 6031 Frankfurt", "Königstraße, 60311 Frankfurt"),
    ),
    Pattern(
        "emoji",
        "multilingual",
        r"[\U0001F300-\U0001F64F\U0001F680-\U0001F6FF\U0001F900-\U0001FAFF]{1,5}",
        ("🎉", "🚀🙂🤖", "🧪🧬🔬🌍😀"),
        ("", "x", "🎉🎉🎉🎉🎉🎉", "🎉 🎉"),
    ),
    Pattern(
        "Arabic text",
        "multilingual",
        r"[\u0621-\u064A\u0660-\u0669]+( [\u0621-\u064A\u0660-\u0669]+)*[.؟]",
        ("ذهب الولد إلى المدرسة في الصباح.", "هل قرأت الكتاب ١٢٣؟", "نعم."),
        ("ذهب الولد", "hello.", "ذهب  الولد.", "."),
    ),
    Pattern(
        "Korean name",
        "multilingual",
        r"[가-힣]{2,4}( [가-힣]{2,10})?(님|씨)?",
        ("김민수 과장님", "홍길동씨", "세종대왕"),
        ("kim", "김", "김민수  과장", "김민수!"),
    ),
    Pattern(
        "translation",
        "multilingual",
        r'en: "[^"\n]+"\nfr: "[^"\n]+"\nzh: "[^"\n]+"',
        (
            'en: "The train to Lyon leaves at half past eight from platform four."\n'
            'fr: "Le train pour Lyon part à huit heures et demie du quai numéro quatre."\n'
            'zh: "去里昂的火车八点半从四号站台出发。"',
            'en: "a"\nfr: "b"\nzh: "c"',
            'en: "Thank you!"\nfr: "Merci !"\nzh: "谢谢!"',
        ),
        ('en: "a"\nfr: "b"', 'en: "a" fr: "b" zh: "c"', 'en: ""\nfr: "b"\nzh: "c"'),
    ),
    # ---------------------------------------------------------------------------------------------- choices
    Pattern(
        "countries",
        "choices",
        "|".join(COUNTRIES),
        ("New Zealand", "Türkiye", "Côte d'Ivoire", "Chile"),
        ("Atlantis", "New", "Chin", "Germanyy"),
        COUNTRIES,
    ),
    Pattern(
        "ten thousand names",
        "choices",
        "|".join(MANY_NAMES),
        (MANY_NAMES[0], MANY_NAMES[4999], MANY_NAMES[-1]),
        (MANY_NAMES[0] + "x", MANY_NAMES[1].lower(), "Nobody Atall", ""),
        MANY_NAMES,
    ),
)
