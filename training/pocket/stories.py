"""Questions that tools answer, for training: each line stands for all combinations of its choices `[a|b]`.

They supplement the few sentences of `transcripts`: a model that has seen only thirty of a kind fails on new ones.
"""

# Phrases are long lines.
# ruff: noqa: E501

_HOW_MANY = "[How many [{i}s |]are there[ in total| in all| now| together|]?|How many [{i}s |]is that[ in total| together|]?|What is the total?|How many in [total|all]?|How many [{i}s |]does that make?]"
_HOW_MUCH = "[What is the [price|total|cost]?|How much is [that|it|this][ in total| in all| together|]?|What does [it|that] cost[ in total|]?|What do they cost?|What does {n} pay[ in total|]?|How much must {n} pay?|How much [is|was] it [all|in total]?]"
_LEFT = "[How many [{i}s |]are [left|there now]?|How many [{i}s |]remain?|How many [{i}s |]does {n} [still have|have left|keep]?|What is left?|How many [{i}s |]are left over?|What remains?|How many stay?]"
_EACH = "[How many [{i}s |]does each [get|have|receive]?|What does each [get|receive]?|How many [{i}s |]are in each?|How big is one [part|share]?|How many [for|to] each?]"
_HAS = "[has|had|owns|keeps|holds|counts|finds|found|brought|made|saw]"
_MORE = "[gets|buys|finds|makes|wins|bakes|takes|adds|collects|orders|fetches|picked|received|borrowed|got]"
_LESS = "[gives away|sells|loses|breaks|eats|uses|throws away|hands out|lends|burns|drops|forgets|sold|lost|spent|used|sent away|gave {m}]"
_PLACE = "[room|house|box|bag|drawer|garden|shop|car|cellar|corner|kitchen|tent|hall]"
_GROUPS = "[boxes|bags|rows|shelves|crates|tables|rooms|trays|packs|baskets|cars|tents|lines]"
_BUYS = "[buys|orders|needs|takes|wants|gets|bought|ordered|chose|picked]"
_ASK = "[Please |Could you |Can you |I want you to |You should |Now |Would you |]"

STORIES: dict[str, tuple[str, ...]] = {
    "{a}+{b}": (
        f"{{n}} {_HAS} {{a}} {{i}}s and {_MORE} {{b}} [more|others|new ones|again]. {_HOW_MANY}",
        f"{{n}} {_HAS} {{a}} {{i}}s[,| and] {{m}} {_HAS} {{b}}. {_HOW_MANY}",
        f"In [the|one|a|this] {_PLACE} there are {{a}} {{i}}s[,| and] in [the|another|the other|a] {_PLACE} {{b}}. {_HOW_MANY}",
        f"There [are|were] {{a}} {{i}}s in the {_PLACE}[.| and] {{b}} [more |]in the {_PLACE}. {_HOW_MANY}",
        f"[We|They|You|I] [have|had|saw|counted|made|stored] {{a}} {{i}}s [today|yesterday|in May|first|at noon] and {{b}} [later|today|on Monday|more|in June]. {_HOW_MANY}",
        f"{{n}} [pays|paid|spends|spent|gave] {{a}} for [a|the|one] {{i}} and {{b}} for [a|the|one] {{j}}. {_HOW_MUCH}",
        "[A|One|The] {i} [costs|is] {a}[,| and] [a|the|one] {j} [costs |is |]{b}. [What do they cost together?|How much are both?|What do both cost?|What is the sum?|How much do I pay for both?]",
        f"{_ASK}[add|sum] {{a}} [and|to] {{b}}[.|?]",
        "[What is|Tell me|Give me|Find|I need|How much is] the [sum|total] of {a} and {b}[?|.|, please.]",
    ),
    "{a}-{b}": (
        f"{{n}} {_HAS} {{a}} {{i}}s[,| and| but] {_LESS} {{b}}[ of them|]. {_LEFT}",
        f"{{n}} {_HAS} {{a}} {{i}}s. {{b}} [of them |]are [sold|lost|broken|given away|taken|old|used|sent back]. {_LEFT}",
        f"There [are|were] {{a}} {{i}}s in the {_PLACE}[. {{n}} takes| and {{n}} took|, but {{n}} {_LESS}] {{b}}. {_LEFT}",
        f"[Of|From|Out of] [the |]{{a}} {{i}}s, {{n}} {_LESS} {{b}}. {_LEFT}",
        f"[Of|Out of] [the |]{{a}} {{i}}s, {{b}} [were|are] [sold|lost|broken|given to {{m}}|taken|eaten|used]. {_LEFT}",
        f"{{b}} [of|out of] [the |these |]{{a}} {{i}}s [were|are|got] [sold|lost|broken|taken|eaten|used|sent to {{m}}]. {_LEFT}",
        f"The [shop|store|market|farm|school|house] [has|had] {{a}} {{i}}s[.| and] [It |then ][sells|sold|lost|used|gave away] {{b}}. {_LEFT}",
        f"{_ASK}[subtract|take|take away] {{b}} from {{a}}[.|?]",
        "[What is|Tell me|Give me|Find|I need] the difference [between|of] {a} and {b}[?|.|, please.]",
    ),
    "{a}*{b}": (
        f"[There are|We have|{{n}} has|I see|They brought] {{b}} {_GROUPS} [with|of] {{a}} {{i}}s[ each|]. {_HOW_MANY}",
        f"{{b}} {_GROUPS} [hold|have|carry|contain] {{a}} {{i}}s each. {_HOW_MANY}",
        f"[Each|Every|One|A] [box|bag|row|shelf|crate|tray|pack|basket] [has|holds|carries|contains] {{a}} {{i}}s. [How many [{{i}}s |]are in {{b}}[ of them|]?|There are {{b}}. {_HOW_MANY}]",
        f"[Each|One|A|The|Every] {{i}} [costs|is] {{a}}. [What do {{b}}[ {{i}}s| of them|] cost?|How much [are|do I pay for] {{b}}[ {{i}}s| of them|]?|{{n}} {_BUYS} {{b}}[ of them|]. {_HOW_MUCH}]",
        f"{{n}} {_BUYS} {{b}} {{i}}s[ at {{a}} each| for {{a}} each|. Each [costs|is] {{a}}|, each at {{a}}|. One is {{a}}]. {_HOW_MUCH}",
        "{n} [earns|saves|spends|gets|walks|reads|makes] {a} [each|every|a] [day|week|month|hour|year]. [How much|What|How many] [is that |]in {b} [days|weeks|months|hours|years]?",
        f"{_ASK}multiply {{a}} [by|with] {{b}}[.|?]",
        "[What is|Tell me|Give me|Find|I need] the product of {a} and {b}[?|.|, please.]",
    ),
    "{a}/{b}": (
        f"{{n}} [shares|splits|divides|shared|split] {{a}} {{i}}s [equally |]among {{b}} [people|friends|children|guests|pupils]. {_EACH}",
        f"{{b}} [people|friends|children|guests|pupils|players] [share|split|divide|get] {{a}} {{i}}s [equally|in equal parts|fairly]. {_EACH}",
        f"{{a}} {{i}}s [are|were] [packed|put|sorted|split|divided|shared] equally [into|over|among] {{b}} {_GROUPS}. [How many [{{i}}s |][are|go|lie] in each?|{_EACH}]",
        f"{{b}} {_GROUPS} [hold|have|carry] {{a}} {{i}}s in [all|total][, equally|]. [How many [are|go] in each?|How many does each [hold|have]?]",
        "[A bill|A sum|A price|A debt|The cost] of {a} is [shared|split|paid|divided] [equally |]by {b} [friends|people|guests|players]. [How much|What] does each pay?",
        "{b} {i}s cost {a}[ in total| together|]. [What|How much] [does one cost|is one|is each|does each cost]?",
        f"{_ASK}[divide|split] {{a}} by {{b}}[.|?]",
        "[A rope|A wire|A road|A board|A ribbon] of {a} m is [cut|split] into {b} equal [pieces|parts]. How long is [each|one]?",
    ),
    "{a}*{b}+{c}": (
        f"[There are|We have|{{n}} has] {{b}} {_GROUPS} [of|with] {{a}} {{i}}s[ each|] and {{c}} [more|others|on the floor|left over|on top]. {_HOW_MANY}",
        f"{{b}} {_GROUPS} hold {{a}} {{i}}s each[, and|. Then] {{c}} [more come|are added|lie beside them|stand alone]. {_HOW_MANY}",
        f"{{n}} {_BUYS} {{b}} {{i}}s [at|for] {{a}} each and [a|one|the] {{j}} [for|at] {{c}}. {_HOW_MUCH}",
        f"{{n}} {_BUYS} {{b}} {{i}}s [at|for] {{a}} each[ and pays|. Then {{n}} pays|, then spends] {{c}} for [a|the] {{j}}. {_HOW_MUCH}",
        f"[Each|One] {{i}} is {{a}}. {{n}} {_BUYS} {{b}} and [a|the] {{j}} for {{c}}. {_HOW_MUCH}",
        f"{_ASK}multiply {{a}} by {{b}}[, then| and| and then] add {{c}}[ to it|][.|?]",
    ),
    "({a}+{b})*{c}": (
        f"{_ASK}add {{a}} [and|to] {{b}}[, then| and| and then|. Then] multiply [the sum |it |the result |]by {{c}}[.|?]",
        f"{_ASK}[take|find] the sum of {{a}} and {{b}}[, then| and|. Then] multiply [it |]by {{c}}[.|?]",
        f"[A|One|Each] {{i}} [costs|is] {{a}}[,| and] [a|one|each] {{j}} [costs |is |]{{b}}. [What do {{c}} of each cost?|How much are {{c}} of each?|{{n}} {_BUYS} {{c}} of each. {_HOW_MUCH}]",
        f"{{n}} {_BUYS} {{c}} of each: [a|the] {{i}} [at|for] {{a}} and [a|the] {{j}} [at|for] {{b}}. {_HOW_MUCH}",
        "{c} [people|friends|guests] [each |]pay {a} and {b}[ each|]. [How much is that?|What is the total?|What do they pay in total?]",
    ),
    "{b}*{a}/100": (
        f"{_ASK}[compute|find|give|tell|work out|take|get] {{a}}[%| percent] of {{b}}[.|?|, please.]",
        "[What|How much|How many] is {a}[%| percent] of {b}?",
        "{n} [saves|spends|gets|loses|earns|owes|wins|takes|keeps|gave|sold] {a}[%| percent] of {b}. [How much|What] [is|was] [that|it]?",
        "[A|The|One] {i} costs {b}. The [tax|fee|discount|tip] is {a}[%| percent]. How much is [that|the tax|it]?",
        "[Of|Out of] [the |]{b} {i}s, {a}[%| percent] are [new|old|red|broken|sold|lost]. How many [is that|are they|are those]?",
    ),
}  # fmt: skip

WAYS: dict[str, tuple[str, ...]] = {
    "opening": (
        f"{_ASK}[compute|calculate|work out|solve|find|figure out|reckon|get|check|simplify|determine|do|run|give me|tell me|show me] {{x}}[.|?|, please.| for me.]",
        "[What is|What's|How much is|What comes out of|What do I get for|What does one get for|What results from|What will be] {x}?",
        "[I need|I want|I would like|We need|I am looking for|Let me have|Give me|Show me|Tell me|Say] [the [result|value|answer] of |]{x}[.|, please.]",
        "{x}[?|: how much is it?|: what is it?|, please.| is what?| is how much?| =|]",
        "[Compute|Solve|Work out|Calculate|Find|Reckon|Determine|Simplify|Assess|Process|Answer][:|] {x}[.|]",
    ),
    "conversion": (
        f"{_ASK}[convert|change|turn|express|translate|transform|put|give] {{v}} {{f}} [to|into|in|as] {{t}}[.|?|, please.]",
        "[What is|How much is|What are|How long is|How far is|What makes] {v} {f} [in|as|when given in] {t}?",
        "How many {t} [is|are|make|do I get for|are there in|correspond to] {v} {f}?",
        "{n} [has|needs|wants|bought|measured|uses|takes|got] {v} {f}. [How many {t} [is|are] that?|What is that in {t}?|How much is it in {t}?]",
        "[A|The|This] {i} [measures|takes|needs|is] {v} {f}. [How many {t} is that?|What is it in {t}?|And in {t}?]",
    ),
    "after": (
        "[What|Which] [date|day] [is|comes|will be|will it be|do we have|follows|is it] {k} days after {d}?",
        "[It is|Today is|Now it is|We have] {d}. [What|Which] [date|day] [is it|will it be|will we have|comes|is that] in {k} days?",
        "[The|Our|Your] {e} [is|comes|begins|starts|will be|happens] {k} days after {d}. [When is it?|When is that?|On which date is it?|Which date is that?|What date is it?]",
        f"{_ASK}[add|count] {{k}} days [to|from|on from] {{d}}[.|?]",
        "{n} [leaves|starts|comes|pays] on {d} and [returns|is back|ends|pays again|calls] {k} days later. [When|On which date|Which date] is that?",
    ),
    "before": (
        "[What|Which] [date|day] [was|is|came|lies|was it|did we have] {k} days before {d}?",
        "[It is|Today is|Now it is|We have] {d}. [What|Which] [date|day] [was it|was that|did we have|came] {k} days [ago|before|earlier]?",
        "[The|Our|Your] {e} was {k} days before {d}. [When was it?|When was that?|On which date was it?|Which date was it?]",
        f"{_ASK}[go back|count back] {{k}} days from {{d}}[.|?]",
        "{n} [left|started|came|paid|called] {k} days before {d}. [When|On which date|Which date] was that?",
    ),
    "between": (
        "How many days [are|lie|pass|are there|do we have|go by|is it] [from {d} to {f}|between {d} and {f}|from {d} until {f}]?",
        "[The|Our|This] {e} [is|runs|goes|lasts|was] from {d} [to|until|till] {f}. [How many days is [that|it]?|How long is it?|How many days?|How long is that?]",
        "{n} [is away|works|stays|travels|rests|is ill|waits] from {d} [to|until|till] {f}. [How many days is [that|it]?|How long is it?|How many days?]",
        f"{_ASK}[count|tell me|give me|find|work out] the days [from {{d}} to {{f}}|between {{d}} and {{f}}|from {{d}} until {{f}}][.|?]",
    ),
    "lookup": (
        f"{_ASK}[look up|find|check|search for|get|read|show|fetch|give me|tell me|see] {{k}} [in|from] [the table |]{{t}}[.|?|, please.]",
        f"{_ASK}[search|check|look in|look through|ask|scan|consult|see] [the table |]{{t}} for {{k}}[.|?]",
        "[What is|What stands|What do you find|What is written|What is there|What does it say] in [the table |]{t} for {k}?",
        "[I need|I want|Give me|Tell me|Show me|Say] [{k}|the [entry|value|line] [of|for] {k}] [from|in] [the table |]{t}[.|, please.]",
        "In [the table |]{t}, what [is|stands for|is the [entry|value|line] [of|for]] {k}?",
    ),
    "price": (
        "[What|How much] [does|will|would|did] [a|the|one|that|this] {k} cost?",
        "[What is|Tell me|Give me|I need|I want|Say|Show me|Find|What was] the [price|cost] of [a|the|one|that] {k}[?|.|, please.]",
        "How much [is|do [I|we|you] pay for|do [I|we] need for|must {k}s be] [a|the|one] {k}?",
        "[I|We] [want|need|buy|take] [a|the|one] {k}. [What is the price?|How much is it?|What does it cost?]",
    ),
    "stock": (
        "[How many {k}s|Are there {k}s|Is [a|the|one] {k}|Are any {k}s] [are |]in stock?",
        "How many {k}s [do we have|are there|are left|does the shop have|can I have|can we sell][ in stock|]?",
        "[Do [we|you] [still |]have|Does the shop have] [{k}s|a {k}|any {k}s]?",
        "[What is|Tell me|Give me|Check|Show me|I need] the stock of [the {k}|{k}s][?|.|, please.]",
    ),
    "prices": (
        "[What|How much] [do|will|would|did] [the |]{q} {k}s cost?",
        "[What is|Tell me|Give me|I need|I want] the [price|cost] of {q} {k}s[?|.|, please.]",
        f"{{n}} {_BUYS} {{q}} {{k}}s. [What is the price?|What do they cost?|How much is [that|it]?|How much are they?|What does {{n}} pay?]",
        "How much [is it for|do [I|we|you] pay for|must {n} pay for|are the|for] {q} {k}s?",
        "[I|We] [want|need|buy|take|order] {q} {k}s. [What is the price?|How much is [it|that]?|What do they cost?]",
    ),
    "both": (
        "[What|How much] [do|would|will] [a|the|one] {k} and [a|the|one] {j} cost[ together| in total|]?",
        "[What is|Tell me|I need|Give me] the [price|cost|total] of [a|the|one] {k} and [a|the|one] {j}[ together|][?|.|, please.]",
        f"{{n}} {_BUYS} [a|the|one] {{k}} and [a|the|one] {{j}}. [What is the [price|total|cost]?|How much [is that|are they][ together|]?|What do they cost[ in total|]?]",
        "How much [is|do [I|we] pay for|for] [a|the|one] {k} and [a|the|one] {j}[ together| in total|]?",
    ),
    "generic": (
        "[What|Which] {a} [does {x} have|has {x}|belongs to {x}|is it for {x}|is that of {x}|do we have for {x}|did {x} get]?",
        "[What is|Tell me|Find|Get|Give me|Say|Check|Show me|I need|I want|Look for|Read me|Fetch|Report|Return|Name] the {a} [of|for] {x}[?|.|, please.]",
        f"{_ASK}[find|get|give me|tell me|show me|check|look up|send me|look for|say|read|bring me] the {{a}} [of|for] {{x}}[.|?]",
        "[Do you know|Have you got|Can I have|Is there|May I know|I must know|We need|I wonder about] the {a} [of|for] {x}[?|.]",
        "[For|About|On|Of] {x}[:|,] [what is the {a}?|I need the {a}.|tell me the {a}.|the {a}?]",
        "{x}[:|,] [what is the {a}?|which {a}?|{a}?|the {a}, please.]",
    ),
}  # fmt: skip
