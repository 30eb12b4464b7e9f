"""Patterns of dates, networks, numbers and identifiers."""

from __future__ import annotations

from .pattern import Pattern

OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
IPV6 = "|".join(
    [
        r"(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}",
        r"(?:[0-9a-fA-F]{1,4}:){1,7}:",
        *(rf"(?:[0-9a-fA-F]{{1,4}}:){{1,{7 - k}}}(?::[0-9a-fA-F]{{1,4}}){{1,{k}}}" for k in range(1, 6)),
        r"[0-9a-fA-F]{1,4}:(?::[0-9a-fA-F]{1,4}){1,6}",
        r":(?:(?::[0-9a-fA-F]{1,4}){1,7}|:)",
    ]
)

VALUES: tuple[Pattern, ...] = (
    # ------------------------------------------------------------------------------------------------ dates
    Pattern(
        "date",
        "dates",
        r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
        ("2024-02-29", "1999-12-31", "2031-07-04"),
        ("2024-13-01", "2024-00-10", "24-01-01", "2024-01-32"),
    ),
    Pattern(
        "timestamp",
        "dates",
        r"\d{4}-\d{2}-\d{2}T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)",
        ("2024-05-17T08:30:00Z", "2024-05-17T23:59:59.123456789+05:30", "1970-01-01T00:00:00.0-11:00"),
        ("2024-05-17 08:30:00Z", "2024-05-17T24:00:00Z", "2024-05-17T08:30:00", "2024-05-17T08:30:00.1234567890Z"),
    ),
    Pattern(
        "US date",
        "dates",
        r"(0?[1-9]|1[0-2])/(0?[1-9]|[12]\d|3[01])/(19|20)\d{2}",
        ("1/2/1999", "12/31/2024", "07/04/1976"),
        ("13/1/1999", "1/32/1999", "1/2/99", "00/10/2010"),
    ),
    Pattern(
        "e-mail date",
        "dates",
        r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d{1,2} (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4} "
        r"\d{2}:\d{2}:\d{2} (GMT|[+-]\d{4})",
        ("Fri, 17 May 2024 08:30:00 GMT", "Mon, 1 Jan 2001 00:00:00 +0100", "Sun, 31 Dec 2023 23:59:59 -0800"),
        ("Fri 17 May 2024 08:30:00 GMT", "Fry, 17 May 2024 08:30:00 GMT", "Fri, 17 May 2024 08:30:00 CEST"),
    ),
    Pattern(
        "12-hour time",
        "dates",
        r"(1[0-2]|0?[1-9]):[0-5]\d ?([AaPp]\.?[Mm]\.?)",
        ("12:30 PM", "7:05am", "09:59 p.m."),
        ("13:30 PM", "7:60am", "0:10 am", "10:10"),
    ),
    Pattern(
        "duration",
        "dates",
        r"P(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?",
        ("P3Y6M4DT12H30M5S", "PT36H", "P1W", "PT0.25S"),
        ("3Y6M", "P6M3Y", "PT5.S", "P1H"),
    ),
    Pattern(
        "cron line",
        "dates",
        r"(@(annually|yearly|monthly|weekly|daily|hourly|reboot))|"
        r"((((\d+,)+\d+|(\d+(/|-)\d+)|\d+|\*(/\d+)?) ?){5})",
        ("@daily", "*/15 0 1,15 * 1-5", "0 4 8-14 * *", "30 2 * * 0"),
        ("@never", "*/15 0 1,15 x *", "0 4 8- 14 * * x", "a b c d e"),
    ),
    # ---------------------------------------------------------------------------------------------- network
    Pattern(
        "e-mail",
        "network",
        r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,24}",
        ("jane.doe+newsletter@example.co.uk", "support@mistral.ai", "a_b%c@mail-01.eu-west.internal.example.com"),
        ("jane.doe@", "@example.com", "jane doe@example.com", "jane@example.c", "jane@example..com"),
    ),
    Pattern(
        "e-mail, HTML form",
        "network",
        r"[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
        r"(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*",
        ("o'reilly{x}@localhost", "jane@example.com", "a|b~c@sub-domain.long-company-name-gmbh.example.org"),
        ("jane@-example.com", "jane@example-.com", "jane@@example.com", "jane@" + "a" * 64 + ".com"),
    ),
    Pattern(
        "URL",
        "network",
        r"https?://[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+(:\d{1,5})?(/[^\s?#]*)?"
        r"(\?[^\s#]*)?(#\S*)?",
        (
            "https://docs.example.com/en/latest/library/re.html?highlight=fullmatch&page=2#re.fullmatch",
            "http://example.org:8080",
            "https://fr.example.org/wiki/Cha%C3%AEne_de_caractères",
        ),
        ("ftp://example.org/file", "https://localhost/x", "https://-bad.example/", "https://example.org/a b"),
    ),
    Pattern(
        "IPv4",
        "network",
        rf"{OCTET}(?:\.{OCTET}){{3}}",
        ("192.168.0.1", "8.8.8.8", "255.255.255.255"),
        ("256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.400"),
    ),
    Pattern(
        "IPv4 network",
        "network",
        rf"{OCTET}(?:\.{OCTET}){{3}}/(?:3[0-2]|[12]?\d)",
        ("10.0.0.0/8", "192.168.128.0/17", "0.0.0.0/0"),
        ("10.0.0.0", "10.0.0.0/33", "10.0.0/8"),
    ),
    Pattern(
        "IPv6",
        "network",
        IPV6,
        ("2001:0db8:85a3:0000:0000:8a2e:0370:7334", "fe80::1ff:fe23:4567:890a", "::1", "::"),
        ("2001:db8::85a3::7334", "12345::", "fe80:1ff:fe23", "1:2:3:4:5:6:7:8:9"),
    ),
    Pattern(
        "MAC address",
        "network",
        r"([0-9A-F]{2}[:-]){5}[0-9A-F]{2}|([0-9a-f]{2}[:-]){5}[0-9a-f]{2}",
        ("00:1A:2B:3C:4D:5E", "a0-b1-c2-d3-e4-f5", "FF:FF:FF:FF:FF:FF"),
        ("00:1A:2B:3C:4D", "00:1a:2B:3C:4D:5E", "00:1A:2B:3C:4D:5G"),
    ),
    Pattern(
        "host name",
        "network",
        r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]{2,63}",
        ("example.com", "ip-10-0-12-34.eu-west-3.compute.internal", "xn--bcher-kva.example"),
        ("localhost", "-a.example", "a..example", "example.c"),
    ),
    Pattern(
        "cloud resource",
        "network",
        r"arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:(\d{12})?:[a-zA-Z0-9+=/,.@:*_-]+",
        (
            "arn:aws:iam::123456789012:user/division_abc/subdivision_xyz/Bob",
            "arn:aws:s3:::my-bucket/reports/2024/*.parquet",
            "arn:aws-cn:lambda:cn-north-1:123456789012:function:resize:7",
        ),
        ("arn:aws:iam::12345:user/Bob", "arn:gcp:iam::123456789012:user/Bob", "arn:aws:iam::123456789012:"),
    ),
    # ---------------------------------------------------------------------------------------------- numbers
    Pattern(
        "JSON number",
        "numbers",
        r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
        ("0", "-12.5e-7", "6.02214076E23", "1234567890"),
        ("01", "1.", ".5", "+1", "1e"),
    ),
    Pattern(
        "money",
        "numbers",
        r"[$€£¥] ?\d{1,3}(,\d{3})*(\.\d{2})?|\d{1,3}(\.\d{3})*(,\d{2})? ?(€|EUR|CHF)",
        ("$1,234,567.89", "€ 12.00", "1.234,50 €", "99 CHF"),
        ("$1234,567", "12.0 $", "1,234.5 €", "€"),
    ),
    Pattern(
        "Roman numeral",
        "numbers",
        r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})",
        ("MCMXCIV", "XLII", "MMMDCCCLXXXVIII", ""),
        ("IIII", "VX", "MMMM", "ic"),
    ),
    Pattern(
        "coordinates",
        "numbers",
        r"[-+]?([1-8]?\d(\.\d+)?|90(\.0+)?),\s*[-+]?(180(\.0+)?|((1[0-7]\d)|([1-9]?\d))(\.\d+)?)",
        ("48.8566, 2.3522", "-33.8688,151.2093", "+90.0, -180.00"),
        ("91, 0", "48.8566", "48.8566, 181", "48,8566, 2,3522"),
    ),
    Pattern(
        "hex colour",
        "numbers",
        r"#(?:[0-9a-fA-F]{3,4}){1,2}",
        ("#fff", "#1E90FF", "#1e90ff80"),
        ("fff", "#ff", "#12345", "#ggg"),
    ),
    Pattern(
        "scale of ten",
        "numbers",
        r"(10|[0-9])(\.[05])?/10",
        ("7/10", "10/10", "8.5/10"),
        ("11/10", "7", "8.25/10"),
    ),
    # ------------------------------------------------------------------------------------------ identifiers
    Pattern(
        "UUID",
        "identifiers",
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        (
            "123e4567-e89b-12d3-a456-426614174000",
            "00000000-0000-0000-0000-000000000000",
            "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        ),
        (
            "123e4567e89b12d3a456426614174000",
            "123E4567-e89b-12d3-a456-426614174000",
            "123e4567-e89b-12d3-a456-42661417400",
        ),
    ),
    Pattern(
        "UUID, random",
        "identifiers",
        r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-4[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}",
        (
            "9B2F1C3E-6d5a-4f7b-8c9d-0e1f2a3b4c5d",
            "c56a4180-65aa-42ec-a945-5fd21dec0538",
            "ffffffff-ffff-4fff-bfff-ffffffffffff",
        ),
        (
            "c56a4180-65aa-12ec-a945-5fd21dec0538",
            "c56a4180-65aa-42ec-c945-5fd21dec0538",
            "c56a4180-65aa-42ec-a945-5fd21dec053",
        ),
    ),
    Pattern(
        "semantic version",
        "identifiers",
        r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
        r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
        ("1.0.0-alpha.1+001", "0.12.345", "2.0.0-rc.1.x-y-z.--+build.11.e0f985a", "10.20.30"),
        ("1.0", "01.0.0", "1.0.0-", "1.0.0-01", "v1.0.0"),
    ),
    Pattern(
        "IBAN",
        "identifiers",
        r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?",
        ("DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819", "FR14 2004 1010 0505 0001 3M02 606"),
        ("DE8 3704 0044", "de89370400440532013000", "DE89 3704", "GB29-NWBK-6016"),
    ),
    Pattern(
        "bank code",
        "identifiers",
        r"[A-Z]{6}[A-Z0-9]{2}([A-Z0-9]{3})?",
        ("DEUTDEFF", "BNPAFRPPXXX", "NEDSZAJJ100"),
        ("DEUTDEF", "DEUT1EFF", "DEUTDEFF50"),
    ),
    Pattern(
        "ISBN",
        "identifiers",
        r"97[89][- ]?\d{1,5}[- ]?\d{1,7}[- ]?\d{1,6}[- ]?\d",
        ("978-3-16-148410-0", "9780262033848", "979 10 90636 07 1"),
        ("977-3-16-148410-0", "978", "978--3-16-148410-0", "978-3-16-148410-X"),
    ),
    Pattern(
        "phone, international",
        "identifiers",
        r"\+[1-9]\d{6,14}",
        ("+33142278186", "+14155552671", "+4915112345678"),
        ("0033142278186", "+0123456789", "+12345", "+1415555267112345"),
    ),
    Pattern(
        "phone, US",
        "identifiers",
        r"(\+1[ .-]?)?(\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}",
        ("(415) 555-2671", "+1 415-555-2671", "415.555.2671"),
        ("4155552671", "(415-555-2671", "+2 415-555-2671", "415-555-267"),
    ),
    Pattern(
        "payment card",
        "identifiers",
        r"4\d{12}(?:\d{3})?|5[1-5]\d{14}|3[47]\d{13}|6(?:011|5\d{2})\d{12}",
        ("4111111111111111", "5500005555555559", "378282246310005", "6011000990139424"),
        ("411111111111111", "5600005555555559", "37828224631000", "4111 1111 1111 1111"),
    ),
    Pattern(
        "vehicle number",
        "identifiers",
        r"[A-HJ-NPR-Z0-9]{17}",
        ("1HGCM82633A004352", "WVWZZZ1JZXW000001", "JH4KA8260MC000000"),
        ("1HGCM82633A00435", "1HGCM82633A0O4352", "1hgcm82633a004352"),
    ),
    Pattern(
        "UK postcode",
        "identifiers",
        r"([A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}|GIR ?0A{2})",
        ("SW1A 1AA", "M11AE", "GIR 0AA", "EC1A 1BB"),
        ("SW1A1A", "sw1a 1aa", "1AA SW1A", "SW1A  1AA"),
    ),
    Pattern(
        "commit or digest",
        "identifiers",
        r"[0-9a-f]{7,40}|sha256:[0-9a-f]{64}",
        ("da39a3e", "da39a3ee5e6b4b0d3255bfef95601890afd80709", "sha256:" + "e3b0c44298fc1c14" * 4),
        ("da39a3", "DA39A3E", "sha256:" + "e3b0c44298fc1c14" * 3, "da39a3ee5e6b4b0d3255bfef95601890afd807091"),
    ),
    Pattern(
        "container image",
        "identifiers",
        r"(?:(?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d{2,5})?/)?[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
        r"(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
        (
            "python:3.11-slim-bookworm",
            "registry.example.com:5000/team/model-server:2024.05.17_rc1@sha256:" + "0a1b2c3d" * 8,
            "ghcr.io/owner/project",
        ),
        ("Python:3.11", "python:", "python@sha256:abc", "registry.example.com:5000/team//model"),
    ),
    Pattern(
        "JSON web token",
        "identifiers",
        r"eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+",
        (
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5"
            "MDIyfQ.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
            "eyJh.eyJz.x",
            "eyJ0eXAi.eyJpc3Mi.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        ),
        ("eyJh.eyJz", "eyJh.eyJz.", "eyJh.abc.def", "ayJh.eyJz.x"),
    ),
    Pattern(
        "slug, anchored",
        "identifiers",
        r"^[a-z0-9]+(?:-[a-z0-9]+)*$",
        ("how-to-compile-a-regular-expression-in-2024", "a", "v2-release-notes"),
        ("-a", "a--b", "A-b", "a-b-", "a_b"),
    ),
)
