"""Facts that users tell about themselves, and later questions about them in other words; `everyday` makes samples."""

# Phrases are long lines.
# ruff: noqa: E501

from typing import NamedTuple


class Memory(NamedTuple):
    """A kind of fact. maker: how its value is drawn. about: the values of `{r}`; empty if the phrases have no `{r}`."""

    maker: str
    about: tuple[str, ...]
    told: tuple[str, ...]
    asked: tuple[str, ...]
    answer: str


# fmt: off
MEMORIES: tuple[Memory, ...] = (
    Memory("job", (), (
        "I earn my bread as a {v}.", "[By trade|By profession|By training] I'm a {v}.", "They employ me as a {v}.", "I have been [working|busy|active] as a {v} [for long|since spring|for two years].", "My [day job|line of work|trade|calling|profession|career]: {v}.", "I [do|took] the job of a {v}.", "A {v} is what I [am by trade|am at work].", "[For money|To pay the bills] I work as a {v}.", "I just [got|found|started] [a|my first] job as a {v}.",
        "I'm a {v}[ and like it|, you know| at a small firm|].", "[All day|All week] I am busy as a {v}.", "I have spent my life as a {v}.", "My [career|profession] is that of a {v}.", "Being a {v} [pays my rent|feeds my family|fills my days].", "I [learned|studied] to be a {v} and still am."),
        ("[Which|What] [profession|trade|occupation|line of work] is mine?", "[Say|Name|Recall] my [profession|trade|occupation|line of work|job].", "How do I earn my [bread|money|keep]?", "As what am I employed?", "What kind of work do I do?", "What work do I do[ all day|]?", "Do you [recall|know] my [profession|job|trade|line of work]?", "What do I do [for work|all day|for money|to earn my keep]?", "What job did I say I [have|do]?", "my [job|trade|occupation|work]?",
        "What am I by [trade|profession|training]?", "In [which|what] [job|trade|profession] do I work?", "From what do I make my living?", "What fills my working days?", "What pays my rent?", "Remind me of my [profession|occupation|trade].", "[My|And my] [profession|occupation|career|trade][?|, please.]"),
        "You work as a {v}."),
    Memory("place", (), (
        "I was raised in {v}.", "As a [kid|child] I lived in {v}.", "[The town of my childhood|My native town|The place I come from|My birthplace] is {v}.", "I'm a native of {v}.", "{v} is where I [was raised|was a child|learned to walk].", "My [childhood|youth|early life] was spent in {v}.", "I was born and [raised|bred] in {v}.", "My parents raised me in {v}.", "{v} born and raised[, that's me|].", "I spent my youth in {v}.", "My roots? {v}.", "My school days were in {v}."),
        ("[Where|In which town|In what place] was I [raised|a child|born and raised]?", "What's the town of my childhood?", "Where did I [spend my youth|go to school|learn to walk|spend my childhood]?", "[Which|What] [town|city|place] do I come from?", "Where am I from?", "Which is my native town?", "From which [town|place] do I come?", "Where are my roots?", "my [native|home] town?", "[Name|Say] the town [I come from|where I was raised].", "[What|Which] town did I call my [native town|childhood home]?", "Where was I at home as a child?", "In [which|what] [town|city] did my childhood pass?", "[Remind me of|Tell me] my home town."),
        "You come from {v}."),
    Memory("place", (), (
        "[These days|At present|Now] I live in {v}.", "My [flat|house|room] is in {v}.", "I [rent|bought|share] a flat in {v}.", "We [moved house and live|have a house|are at home] in {v}.", "I [stay|dwell|reside] in {v}.", "My address is in {v}.", "You can visit me in {v}."),
        ("Where do I live[ now| at present| these days|]?", "In [which|what] [town|city] [is my flat|is my house|do I live|do I stay|do I reside]?", "Where is my [flat|house|home]?", "Where can one visit me?", "[Name|Say] the [town|city] I live in.", "What's my present home?", "[Which|What] [town|city] is my home now?"),
        "You live in {v}."),
    Memory("first", (), (
        "[Hey|Hi|Hello], it's {v}[, hello|].", "im {v}[ btw|]", "My friends say {v} to me.", "You have {v} on the line.", "{v}'s the name.", "The name's {v}.", "[Everyone|Everybody] calls me {v}.", "Here is {v}[ again|, hi|].", "[Write|Note] down that I am {v}.", "{v} is writing to you.", "I sign as {v}.", "I introduce myself: {v}.", "You are speaking with {v}.", "My parents gave me the name {v}.", "I answer to {v}.", "[Good morning|Good evening|Hello there], {v} here.", "I'm {v}[, by the way|, pleased to be here|, nice place|].", "{v}, that's me."),
        ("Do you [know|recall|remember] [who I am|my name|how I am called|who you talk to]?", "[Who|Whom] are you talking to?", "Who is writing to you?", "How do people call me?", "[Which|What] name [do I go by|did I give|is mine|do I have]?", "what was i called?", "By what name am I known?", "Say [who I am|my name].", "My name[, please|?| again?]", "You remember who I am, right?", "How shall you call me?", "who's writing here?", "I am called what?", "Have you kept my name?", "[And who|Who] am I?", "[Tell|Remind] me who I am.", "What name did I tell you?"),
        "Your name is {v}."),
    Memory("pet", ("dog", "cat", "rabbit", "horse", "parrot", "goldfish", "hamster", "pony", "puppy", "kitten", "tortoise", "goat", "hen", "donkey", "canary"), (
        "Our {r} [listens to|answers to|is known as] {v}.", "We [call|named] the {r} {v}.", "I [walk|feed|brush] my {r} {v} every day.", "[A new|A little|An old] {r} lives with us, [its name is|called|named] {v}.", "My {r}? {v}[, of course|].", "{v} is [our|the family's|my] {r}.", "At home a {r} called {v} waits for me.", "I got myself a {r} and named it {v}.", "My {r} is {v}.", "The {r}'s name? {v}.", "[We|I] have a {r}, and {v} is its name.", "{v} the {r} sleeps [on my bed|all day].", "The {r} at our house is called {v}."),
        ("What name did [I|we] give [the|my|our] {r}?", "[Tell|Give] me the name of my {r}.", "[How|By what name] do I call my {r}?", "Who is my {r}?", "Which name has our {r}?", "the {r}'s name?", "What is our {r} called?", "And the {r}, what's it called?", "You know my {r}, what's the name?", "the name of the {r}[?| please|, please]", "[What|Which] is the name of my {r}?", "Do you [recall|know] [what my {r} is called|my {r}'s name]?", "What was the {r} called?"),
        "Your {r} is called {v}."),
    Memory("first", ("sister", "brother", "mother", "father", "aunt", "uncle", "cousin", "son", "daughter", "wife", "husband", "niece", "nephew", "grandmother", "grandfather", "best friend", "roommate", "girlfriend", "twin"), (
        "My {r}'s name is {v}.", "{v} is my {r}.", "I have [a|one] {r}[. The name is|, and that is| who is called] {v}.", "My {r} {v} [lives with us|is a nurse|visits on Sunday|is older|likes tea].", "[Greet|Say hello to] my {r} {v}.", "I [called|met|visited] {v}, my {r}.", "My {r} goes by {v}.", "{v}, that's my {r}[.|'s name.]", "There is {v} in my family, my {r}.", "My {r}? That's {v}."),
        ("Who is my {r}?", "[Say|Tell me|Give me] the name of my {r}.", "[What|Which] name has my {r}?", "How is my {r} called?", "my {r}'s name?", "What's the name of my {r}?", "Do you know my {r}'s name?", "By what name is my {r} known?", "[And|So] my {r} is who?", "Remind me, my {r} is called what?", "My {r}, what's the name?"),
        "Your {r} is {v}."),
    Memory("person", ("boss", "teacher", "doctor", "landlord", "coach", "neighbour", "lawyer", "manager", "tutor", "plumber", "vet"), (
        "My {r} is {v}.", "{v} is my {r}.", "I have {v} as [a|my] {r}.", "My {r}'s name is {v}.", "[I work with|I asked|I trust] my {r}, {v}.", "As {r} I have {v}."),
        ("Who is my {r}?", "[Say|Tell me|Give me] the name of my {r}.", "Whom do I have as {r}?", "What's the name of my {r}?", "my {r}'s name?", "[Which|What] person is my {r}?"),
        "Your {r} is {v}."),
    Memory("code", ("wifi", "alarm", "safe", "garage", "bike lock", "front door", "phone", "laptop", "gate", "mailbox", "shed", "office", "router", "printer", "tablet", "cellar", "network", "cloud"), (
        "To get [into|on|past] the {r} [you type|type|enter|use] {v}.", "{r}: {v}", "[Keep|Save|Write down] {v} for the {r}.", "The {r} [opens|works|lets you in] with {v}.", "[For|With] the {r} [it's|you need|we use] {v}.", "{v} is [for|the code of|the password of] the {r}.", "I changed the {r} [code|password] to {v}.", "They gave me {v} for the {r}.", "The [code|password] [of|for] the {r} is {v}.", "[Our|My] {r} password: {v}", "{r} [code|password], keep it: {v}"),
        ("How do I get into the {r}?", "What [opens|unlocks] the {r}?", "[Which|What] [code|password] [goes with|is for|has] the {r}?", "What [must|do] I [type|enter] for the {r}?", "[Say|Repeat|Show] the {r} [code|password].", "the {r} [code|password][?| please]", "What did I tell you to keep for the {r}?", "With what does the {r} work?", "[Code|Password] for the {r}?", "[Remind me of|I need|Tell me] the {r} [code|password]."),
        "For the {r} it is {v}."),
    Memory("number", ("locker", "seat", "room", "desk", "bed", "table", "cabin", "badge", "platform", "house", "box", "parking spot", "bay", "tent"), (
        "I was given {r} [number |no. |]{v}.", "They put me at {r} {v}.", "Mine is {r} {v}.", "{r} {v} is [mine|for me|where my things are].", "The number of my {r}[ is|:] {v}.", "My {r} [carries|bears|has] the number {v}.", "I'm at {r} {v} [today|this year|now].", "Look for me at {r} {v}.", "I [use|got|rent] {r} {v}.", "My {r} is [number |no. |the one with ]{v}.", "[My things are|I left my bag] at {r} {v}."),
        ("[Which|What] {r} [is mine|was I given|did I get|do I use]?", "What number [has|is on] my {r}?", "[The number of my|my] {r}?", "Say the number of my {r}.", "Do you know [which|what] {r} is mine?", "[Which|What] number did I give for my {r}?", "What's the number of my {r}?", "My {r} is number what?", "[Remind me of|Tell me] my {r} number."),
        "Your {r} is number {v}."),
    Memory("code", ("flight", "plane", "train", "bus", "ferry"), (
        "I [hold|bought|have] a ticket for [the {r} |]{v}.", "They booked me [on|onto] [{r} |]{v}.", "My {r} [is numbered|has the number|carries the number] {v}.", "[The {r} I take|My {r} home|The {r} for me] is {v}.", "I'll be [on|aboard] {v}.", "Note my {r}: {v}", "I [reserved|have reserved|booked] a seat on {v}.", "{v} is the {r} I take.", "I [travel|leave|go|come] with {v}[ on Friday| tomorrow|].", "[On|Aboard] {v} there is a seat for me."),
        ("[Which|What] {r} [do I take|am I booked on|is mine|will I be on|did I book|carries me]?", "[What|Which] number has my {r}?", "my {r} number?", "On [which|what] {r} [am I|do I travel|did I book]?", "The {r} number, please.", "Do you know my {r}?", "With which {r} do I go?", "Name my {r}.", "[What|Which] {r} did I [mention|name|tell you about]?", "[Remind me of|Repeat|Tell me] my {r}."),
        "Your {r} is {v}."),
    Memory("allergen", (), (
        "My body can't take {v}.", "{v} makes me [ill|sick|itch|swell].", "I must not [touch|eat|smell] {v}, it's an allergy.", "My allergy is [to|against] {v}.", "I'm allergic, so no {v} for me.", "Never serve me {v}, I am allergic.", "[Since childhood|For years] I've been allergic to {v}.", "If I eat {v}, I need a doctor: allergy.", "They tested me: an allergy to {v}.", "Please keep {v} away, I have an allergy."),
        ("To what am I allergic?", "[Say|Name] my allergy.", "What should [nobody serve me|you keep from me]?", "What is my allergy?", "[What|Which thing] causes my allergy?", "my allergy?", "What can my body not take?", "What [makes me ill|do I have to stay away from]?", "Against what do I have an allergy?", "What should never be served to me?", "What [food|thing] am I allergic to?"),
        "You are allergic to {v}."),
    Memory("colour", ("colour", "color"), (
        "I like {v} more than any other {r}.", "The {r} I [love|like best|prefer] is {v}.", "[No|There is no] {r} [beats|is better than] {v}.", "[For me|To me] {v} is the [best|nicest|finest] {r}.", "If I may choose a {r}, it's {v}.", "I adore {v}, the best {r} of all.", "Everything I own is {v}, as I love that {r}.", "{v} is the {r} for me.", "Of all, I prefer {v} as a {r}."),
        ("[Which|What] {r} do I [prefer|love|like most|like more than others|choose]?", "And my favourite {r}?", "My favourite {r}, please.", "[Say|Name] my favourite {r}.", "[Tell me|Repeat] my favourite {r}.", "Do you [recall|know] my favourite {r}?", "[What|Which] {r} is my favourite?", "[What|Which] {r} pleases me most?", "In which {r} do I like things?"),
        "Your favourite {r} is {v}."),
    Memory("thing", ("food", "drink", "animal", "season", "sport", "flower", "game", "fruit", "cheese", "cake", "toy", "tool", "band", "film", "song", "book", "tree", "bird", "sweet", "subject"), (
        "I like {v} more than any other {r}.", "The {r} I [love|like best|prefer] is {v}.", "[No|There is no] {r} [beats|is better than] {v}.", "[For me|To me] {v} is the [best|nicest|finest] {r}.", "If I may choose a {r}, it's {v}.", "My favourite {r} is {v}.", "{v} is my favourite {r}.", "I adore {v}, my favourite {r}.", "My {r} of choice: {v}.", "I'm mad about {v}, my favourite {r}."),
        ("[Which|What] {r} do I [prefer|love|like most|like best|choose]?", "What is my [favourite|best-loved|preferred] {r}?", "And my favourite {r}?", "My favourite {r}, please.", "[Say|Name] my favourite {r}.", "Do you [recall|know] my favourite {r}?", "[What|Which] {r} is my favourite?", "What's my favourite {r}?"),
        "Your favourite {r} is {v}."),
    Memory("day", ("dentist", "doctor", "barber", "vet", "lawyer", "bank", "eye doctor", "hairdresser", "tailor", "notary", "clinic", "garage", "tax office", "embassy", "surgeon", "optician"), (
        "[I see|I go to|I visit] the {r} [on|this|next] {v}.", "The {r} [expects|sees|wants] me on {v}.", "[On|This|Next] {v} [I'm at|I go to|it's] the {r}[ for me|].", "They gave me {v} at the {r}.", "My [visit|date|time] at the {r} is [on |]{v}.", "{r}: {v}", "I booked the {r} for {v}.", "The {r} [moved me|put me down] [to|for] {v}.", "[On|Come] {v} I have to be at the {r}.", "I have an appointment with the {r}, it's on {v}.", "{v} is [my day at|when I see|when I go to] the {r}.", "Appointment at the {r}: {v}."),
        ("[When|On which day|What day] [must|do|will] I [go to|visit|be at] the {r}?", "When [is|was] my [visit|date|time] [at|with] the {r}?", "When does the {r} [expect|want] me?", "The {r}, when[ is that|]?", "[Which|What] day did they give me at the {r}?", "When am I at the {r}?", "For when did I book the {r}?", "[Say|Tell me] the day of my {r} appointment.", "When's the {r} appointment?", "the {r} appointment, what day?", "[What|Which] day is the appointment with the {r}?", "On [which|what] day do I see the {r}?"),
        "It is on {v}."),
    Memory("day", ("exam", "concert", "wedding", "interview", "party", "race", "driving test", "surgery", "rehearsal", "trip", "match", "deadline"), (
        "My {r} is on {v}.", "The {r} is set for {v}.", "[On|Next|This] {v} there's my {r}.", "They moved my {r} to {v}.", "{v} is the day of the {r}.", "{r}: {v}", "I have [a|the|my] {r} on {v}.", "Wish me luck for the {r} on {v}.", "On {v} I have to go to the {r}."),
        ("When is [my|the] {r}?", "[Which|What] day is [my|the] {r}?", "On [which|what] day do I have the {r}?", "When do I have the {r}?", "The {r}, when is it?", "For when is the {r} set?", "[Say|Tell me] the day of the {r}.", "my {r}, when?"),
        "It is on {v}."),
    Memory("clock", ("bus", "train", "shift", "class", "lesson", "show", "call", "alarm", "lunch", "dinner", "course"), (
        "My {r} [starts|begins|is|goes] at {v}.", "The {r} [starts|begins|is] at {v}.", "At {v} [I have my|it's time for the|there is my] {r}.", "{v}, that's my {r}.", "They put the {r} at {v}."),
        ("[When|At what time|What time] [is|was] my {r}?", "[When|At what time] does the {r} [start|begin]?", "What time did I give for my {r}?", "At what hour is my {r}?", "The {r}, what time?"),
        "It is at {v}."),
    Memory("titled", (), (
        "I drive a {v}.", "My car is a {v}.", "I [bought|own|park] a {v}, a fine car.", "In my garage stands a {v}.", "The car I have is a {v}."),
        ("[What|Which] car [do I drive|is mine|do I own|have I got]?", "What do I drive?", "What [stands|is] in my garage?", "[What make|What kind] is my car?", "[Say|Name] my car."),
        "You drive a {v}."),
    Memory("tongue", (), (
        "I speak {v} with my [mother|children|friends].", "At home we talk {v}.", "I grew up with {v} as my language.", "I learned {v} as a child.", "My language is {v}.", "I dream in {v}."),
        ("[What|Which] language [is mine|do I speak|do we talk at home|did I learn as a child]?", "What do I speak with my family?", "In which language do I dream?", "[Say|Name] my language.", "What's my mother tongue?"),
        "Your language is {v}."),
    Memory("number", (), (
        "I am {v} [years old|years of age].", "I [turn|turned] {v} [in May|last week|this year].", "[My age|The years I count]: {v}.", "{v} candles were on my cake.", "I have lived for {v} years."),
        ("How old am I?", "What [age|number of years] do I have?", "[Say|Name] my age.", "How many [years|candles] is it for me?", "my age?", "At what age am I?"),
        "You are {v} years old."),
    Memory("phone", (), (
        "[Ring|Call|Phone] me [on|at|under] {v}.", "My [mobile|phone|telephone|number] is {v}.", "You [reach|get] me [on|under] {v}.", "{v} is my [phone|mobile] number.", "To call me, dial {v}."),
        ("[What|Which] number is my phone?", "How can one [call|phone|ring] me?", "[Say|Repeat] my [phone|mobile|telephone] number.", "Under which number do you reach me?", "my phone number?", "[What|Which] number do people dial for me?"),
        "Your phone number is {v}."),
    Memory("street", (), (
        "My [house|flat] is [at|on] {v}.", "I live [at|on] {v}.", "[Post|Letters|Parcels] for me [goes|go] to {v}.", "Send it to {v}, that's my address.", "My door is [at|on] {v}."),
        ("[What|Which] is my [street|address]?", "[On|In] which street [do I live|is my house|is my door]?", "Where do [letters|parcels] for me go?", "[Say|Repeat] my address.", "my address?"),
        "Your address is {v}."),
    Memory("thing", (), (
        "For [my birthday|my party|the holidays] I [want|wish for|hope for] a {v}.", "A {v} is what I wish for.", "I dream of getting a {v}.", "My wish: a {v}.", "I would be glad of a {v} as a present."),
        ("What do I [wish for|hope for]?", "[What|Which] present do I want?", "What is my wish?", "What should one give me?", "What do I dream of getting?"),
        "You wish for a {v}."),
    Memory("hobby", (), (
        "[In my free time|After work|On Sundays] I [do|like|enjoy] {v}.", "My hobby is {v}.", "{v} is my [hobby|pastime|passion].", "I'm a fan of {v}.", "I [took up|started with|am mad about] {v}.", "Nothing relaxes me like {v}."),
        ("What [is|was] my [hobby|pastime|passion]?", "What do I do [after work|in my free time|on Sundays|for fun]?", "How do I spend my free time?", "[Say|Name] my hobby.", "What relaxes me?", "my hobby?"),
        "Your hobby is {v}."),
)
# facts with similar questions: a conversation has at most one of each row. A fact without `{r}` is named by its answer
ONCE: tuple[tuple[str, ...], ...] = (
    ("flight", "plane", "train", "bus", "ferry"),
    ("You live in {v}.", "Your address is {v}.", "house"),
    ("Your phone number is {v}.", "phone"),
    ("You drive a {v}.", "garage"),
)
# fmt: on


def wording() -> str:
    """All words around the values."""
    return f"{MEMORIES}"
