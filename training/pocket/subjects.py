"""Plain English words by subject, for few-shot texts: what belongs together, so that an unseen text finds its label."""

# Word lists are long strings that are split into words.
# ruff: noqa: E501

SUBJECTS: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        "payments": "bill charge charged invoice refund card payment fee receipt paid pay money amount price cost balance overcharged credit debit tax statement subscription dollars euros cent bank owe twice expensive deposit billed",
        "failures": "crash crashes error screen app website load loading server system freeze frozen page connection software update bug broken down offline slow reboot reset install button stuck fails failed timeout black blank restart glitch",
        "shipping": "package parcel delivery deliver delivered courier order arrive arrived shipment shipped shipping box address late tracking door damaged missing warehouse driver truck postman customs sent label lost transit stamp envelope",
        "accounts": "password login account username sign locked access email profile code verify verification register forgot user security blocked reset link id authentication token pin logged suspended identity recover unlock",
        "sales": "buy price discount offer plan cost cheaper upgrade order sale deal quote catalogue shop stock bulk purchase cheap store package premium trial license voucher coupon customer basket checkout license size available",
        "returns": "return exchange send back wrong size faulty replacement replace swap warranty defect unhappy colour different guarantee repair complaint broken label unused policy",
        "cooking": "onion butter soup bread bake garlic fry oil sauce pepper salt eggs sugar flour chicken lemon pasta cheese stir boil oven pan dough spoon recipe chop roast simmer whisk grate dish meal grill spice herbs stew knife rice peel tomato cream mix cook kitchen",
        "space": "planet comet star stars sun moon rocket orbit galaxy telescope eclipse astronaut satellite probe Mars Jupiter Saturn launch gravity asteroid meteor universe cosmos shuttle crater solar spacecraft",
        "garden": "plant tulip rose roses pruning water lawn compost soil weeds seeds sow hedge greenhouse flower dig spade grow bloom leaves tree garden rake autumn spring bulbs seedlings mulch shed vegetables harvest bush branch",
        "cars": "engine brakes tyres car clutch garage petrol gearbox oil headlights wheel drive driver motor fuel mechanic steering bumper tyre exhaust parking road vehicle diesel seatbelt windscreen mileage gear flat honk bonnet repair",
        "football": "striker goal goalkeeper penalty coach team half cup final referee card stadium match league club score scored player kick ball fans win won defender pitch tournament midfielder offside transfer champion",
        "music": "violin tune opera song sang pianist piano sonata conductor album choir hymn cello concert symphony guitar drum band singer melody orchestra chorus note notes trumpet jazz record stage rehearsal lyrics flute solo audience",
        "medicine": "pill pills patient fever nurse bandage surgery doctor hospital pain vaccine flu cough clinic allergy allergies medicine sick heart blood infection headache wound symptoms dose treatment ill disease therapy prescription throat",
        "school": "teacher pupil lesson exam homework class classroom grade essay student college textbook test study term lecture university maths history reading semester marks course professor campus scholarship learn",
        "weather": "rain storm snow cloud sun thunder fog wind hail frost sunny cold warm heat degrees forecast lightning rainbow drizzle temperature umbrella flood freezing humid showers breeze ice windy cloudy",
        "travel": "flight hotel airport luggage passport train ticket tourist visa beach suitcase cruise ferry trip journey map holiday boarding platform station island abroad vacation hostel pilot guide landing plane resort",
        "animals": "lion elephant tiger wolf bear monkey zebra whale penguin dolphin dog cat horse bird fish fur tail paw cage zoo wild herd claws feathers nest rabbit fox owl snake prey hunt pet puppy kitten",
        "law": "judge court lawyer verdict trial witness jury contract crime prison sentence appeal police thief arrest guilty law legal evidence attorney sue case murder robbery victim innocent stolen charge fine",
        "politics": "president minister election vote parliament senate government party campaign law tax policy mayor treaty border nation democracy candidate debate reform king ballot citizens embassy speech",
        "computers": "computer keyboard laptop mouse monitor printer program code database internet browser network file download cable memory disk chip data wifi router processor developer algorithm hacker robot",
        "house": "kitchen bedroom roof window ceiling stairs bathroom sofa wall carpet curtain fireplace attic cellar chimney door floor paint furniture rent apartment lamp balcony neighbour heating tenant landlord plumbing lease",
        "clothes": "shirt dress trousers scarf jacket sweater skirt socks collar sleeve coat blouse fabric shoes hat gloves button silk fashion jeans belt boots wear wool cotton fitting zip pocket tailor",
        "jobs": "interview salary boss office colleague career hire hired fired promotion contract meeting manager vacancy resume application overtime employee shift wage retire work staff position team deadline",
        "family": "mother father sister brother baby wedding birthday uncle aunt grandmother child children parents cousin married son daughter family twins grandfather wife husband home dad mum nephew",
        "science": "experiment laboratory atom molecule chemistry physics theory scientist electron cell gene microscope energy research acid biology reaction formula evolution hypothesis particle element measurement sample",
        "art": "painting canvas brush sculpture museum gallery artist portrait sketch colour exhibition drawing frame statue poster ink easel watercolour clay masterpiece draw design mural",
        "books": "novel author chapter page library reader poem poet story publisher writer fiction plot hero cover bestseller bookshop literature paperback edition tale diary",
        "film": "movie actor actress director cinema scene camera script screen trailer popcorn sequel oscar film premiere hollywood comedy thriller episode series plot cast subtitles",
        "money": "loan interest mortgage shares stock market dividend savings investor debt inflation currency budget profit bond fund insurance wealth economy account invest crash trade broker",
        "war": "soldier army tank battle gun bomb general enemy attack troops weapon peace treaty rifle missile navy soldiers invasion fortress retreat wounded defence victory uniform",
        "sea": "ship boat sailor harbour wave anchor captain island sail ocean shore tide fisherman port deck lighthouse coast storm net submarine beach coral crew dive shark",
        "fitness": "gym run running muscles weights yoga marathon training sweat push-ups treadmill coach stretch jog cycling swim squat exercise workout fit diet calories race tennis sport medal",
        "religion": "church priest prayer temple god mosque faith bible monk holy saint angel sermon bishop soul worship candle pilgrim heaven chapel choir blessing",
        "farming": "farmer tractor cow field wheat harvest barn sheep pig milk hay crop plough goat chicken corn stable pasture orchard egg lamb fence grain manure",
        "meetings": "meeting agenda minutes schedule calendar appointment conference call invite reschedule room attendees monday tuesday thursday noon postponed presentation slides report attached project notes",
        "advertising": "free prize winner won click link offer cash buy now limited congratulations million claim guaranteed cheap lottery bonus urgent act win selected gift deal rich earn casino exclusive million promotion subscribe weekly income",
        "personal": "mum dad dinner lunch weekend see you tomorrow thanks love home tonight kids birthday friend party call later miss sorry late coffee meet weekend school yesterday notes report",
        "joy": "love loved happy great wonderful best amazing perfect delighted glad excellent fantastic thrilled beautiful enjoy enjoyed smile thank lovely superb pleased brilliant delicious recommend friendly helpful awesome charming impressed favourite surprise joy nice perfectly good fun",
        "anger": "hate hated terrible awful worst angry furious useless rude disgusting horrible bad broke disappointed disappointing never complaint disgrace poor waste unhappy annoyed ridiculous unacceptable shame nightmare lousy pathetic cheated dirty ugly scam boring avoid fed-up mad",
        "sadness": "sad cry cried lonely tears grief lost miss alone sorrow heartbroken gloomy funeral unhappy depressed hopeless weep mourning regret farewell sigh empty miserable",
        "fear": "afraid scared fear terrified panic nervous worried horror ghost scream danger dark nightmare threat anxious trembling spider frightening monster hide alarm",
    }.items()
}
INTENTS: dict[str, tuple[str, ...]] = {
    "question": ("[Where|When|Why|How] [is|was|do I find|did you see] the {a}?", "[What|Which] {a} [is it|do you mean|costs less]?", "[Can|Could|Will|Do] [you|they|we] [see|fix|need] the {a}?", "[Is|Are] there [a|any] {a} [here|left|today]?", "Who [has|took|made|wants] the {a}?", "How [many|much|old|big] is the {a}?"),
    "order": ("[Give|Show|Hand|Pass] me the {a}.", "[Take|Move|Carry|Throw|Keep] the {a} [away|out|here|over there].", "[Clean|Wash|Fix|Leave|Lift|Push|Find] the {a} [now|first|again].", "Do not [touch|lose|drop|use] the {a}.", "[Go|Come|Run|Walk] to the {a} [at once|now|slowly]."),
    "statement": ("The {a} [is|was|became] [old|new|red|small|here|gone].", "[We|They|I] [have|had|saw|lost] a {a} [yesterday|once|at home].", "{n} [likes|bought|keeps|made] the {a}.", "There [is|was] a {a} [in|near|on] the [box|town|room]."),
    "greeting": ("[Hello|Hi|Hey|Good morning|Good evening] [{n}|everyone|all|my friend][!|.|, how is the {a}?]", "[Welcome|Nice to see you], {n}[!|.]", "[Hi|Hello][!|, it is {n}.]"),
    "thanks": ("[Thanks|Thank you|Many thanks] for the {a}[!|.|, {n}.]", "[I am grateful|We are thankful] for [your|the] {a}.", "That {a} [helped|was kind], thank you."),
    "apology": ("[Sorry|I am sorry|We apologise] [about|for] the {a}.", "[Forgive|Excuse] me, I [lost|broke|forgot] the {a}.", "It was my [fault|mistake] that the {a} [broke|was late]."),
}  # fmt: skip
SAID = (
    "[I|We|They|You|{n}] [need|want|have|lost|found|saw|like|bought|know|got|asked for|talked about|heard of] [the|a|some|my|our|this] {a}[.|!| again.| today.| and the {b}.| with the {b}.|]",
    "[The|My|Our|A|This|That|Your|Every] {a} [is|was|looks|seems|became|will be] [fine|late|new|old|here|gone|ready|big|strange|open|{b}][.|!|]",
    "[There is|There was|It is about|That is|Here is|Look at] [a|the|my|our] {a} [and|with|for|near|of|in|after] [the|a|my] {b}[.|]",
    "[Why|When|Where|How] [is|was|does|did|can] [the|my|our|this] {a} [so {b}|{b}|come with the {b}|and the {b}]?",
    "[Please|Could you|Can you|You should|They will] [check|bring|see|look at|take|change|show me] the {a}[, {b}| before the {b}| and the {b}| or {b}][.|?|]",
    "[After|Before|Because of|Without|Despite|During] the {a}[,] [we|they|I|{n}] [went|came|stopped|waited|talked] [to|for|about|with] the {b}[.|]",
    "{a} [and|or|,] {b} [and|or|,] {c}[.|!|]", "{n} [told|asked|showed] [me|us|them] [about|that] [the|a] {a}[, {b}| and {b}|][, {c}|][.|]",
    "[So much|No more|Too much|Not enough|All the] {a}[, {b}|][!|.|]", "{a} {b}[.|!|?|]", "[My|The] {a} [has|had|needs|got] [a|the|no|two] {b} [since|for|on|in] [the|a] {c}[.|]",
    "[Still|Just|Only|Again|Once more] [the|a|my] {a}[,|:] {b} [and|but not|,] {c}[.|]", "[We|I|They] {a} [the|a|it] [and|then|with] {b}[.|, {c}.]",
)  # fmt: skip
