"""Records whose fields are told apart by each value's role in the sentence, and quantities told apart by their unit.

A frame has roles, and a text contains some of them in any order. So a field's name says which value is meant; the
value's position or look does not. `everyday` makes samples of them.
"""

# Phrases are long lines.
# ruff: noqa: E501

from typing import NamedTuple


class Frame(NamedTuple):
    """Texts with several roles. roles: letter -> (how the value is drawn, names of the field). texts: sentences with
    `{letter}` for a value."""

    roles: dict[str, tuple[str, tuple[str, ...]]]
    texts: tuple[str, ...]


def _frame(texts: tuple[str, ...], **roles: str) -> Frame:
    """Parses a frame. roles: letter -> maker and names of the field, separated by spaces."""
    parted = {letter: text.split() for letter, text in roles.items()}
    return Frame({letter: (words[0], tuple(words[1:])) for letter, words in parted.items()}, texts)


# fmt: off
_HOME = "place home home_city lives_in residence place_of_residence abode domicile dwelling_place resides_in city_of_residence current_home lives_now current_city where_living living_in home_now town_of_residence"
_BIRTH = "place birthplace born_in place_of_birth native_town native_city city_of_birth where_born town_of_birth"
_AGE = "age age years_old how_old age_in_years years_of_age"
_NAME = "person name full_name person who named_person whole_name name_of_person"
_JOB = "job job occupation profession trade line_of_work works_as"
_ROLE = "[Passenger |Traveller |Ticket holder |Guest |Rider |Customer |Commuter |Tourist |Our guest |Flyer |Student |Engineer |||||||]"


def _trip(word: str, keys: str) -> Frame:
    return _frame(
        tuple(text.replace("<W>", word).replace("<P>", _ROLE) for text in (
            "<P>{n} [travels|goes|leaves|rides] [on|with] [<W> |]{c} [from {f} |]to {t}[, place {s}|, in {s}|].",
            "[<W> |]{c}[, {f} - {t}|, to {t}|, {f} to {t}]: <P>{n}[, seat {s}|, place {s}|, {s}|]",
            "[Seat|Place|Chair] {s} [on|of] <W> {c} [is kept for|belongs to|is taken by|goes to] <P>{n}[, who travels to {t}|, destination {t}|, off to {t}|, getting off in {t}].",
            "[Ticket|Travel card|Voucher|Reservation|Booking] [for|of|in the name of] <P>{n}: <W> {c}, {f} to {t}, [seat|place] {s}[.|]",
            "[To|For|Towards] {t}: <P>{n}, <W> {c}, seat {s}, gate {g}.", "<P>{n} [boards|takes|catches|gets on] {c} in {f} and [gets off|lands|arrives|gets out] in {t}.", "{n} / {c} / {f} > {t} / {s}", "{n} | {t} | {c} | {s}",
            "<W> {c} [takes|brings|carries|gets] <P>{n} from {f} to {t}[, seat {s}|].", "[On|By] <W> {c}, <P>{n} [reaches|gets to|will reach] {t} from {f}; the seat is {s}.", "<P>{n} has [a place|a seat|a ticket|room] on {c} to {t}: {s}.",
            "[Would|Will] <P>{n}, seat {s}, [come|go|proceed] to gate {g} for <W> {c} to {t}[?|.]", "I am {n} and I [go|travel] to {t} from {f} [on|with] {c}; I [sit|am] in {s}.", "{s} is the seat of <P>{n} on the <W> to {t} ({c}).",
            "From {f} to {t} [sits|travels|rides] <P>{n}, seat {s}[, <W> {c}|].", "{t} is where <P>{n} [goes|wants to go|is going|will get out][, on {c}|, by <W> {c}].", "[Leaving|Coming from|Departing] {f}, <P>{n} [heads for|makes for|is on the way to] {t} with {c}.", "Gate {g}, {c} to {t}: <P>{n} [is still missing|is on board|has checked in] ({s}).",
            "Dear {n}, your <W> {c} to {t} leaves {f} [from gate {g}|on time|late]. [Your seat: {s}.|You sit in {s}.|]",
        )),
        n="person traveller passenger rider ticket_holder who name person_travelling flyer travelling_person booked_for", t="place destination to going_to heading_for bound_for arrives_in target_city travels_to final_stop arrival_city where_to goal",
        f="place origin from departs_from departure_city leaving starting_point coming_from start_city leaves_from", c=f"code {keys}", s="seat seat seat_no place_no seat_number sits_in chair", g="gate gate gate_no exit_gate boarding_gate")


FRAMES: tuple[Frame, ...] = (
    _frame((
        "{n} is {a} and [lives|has a home|resides|dwells|has put down roots] in {h}.", "{h} [is|has become|has long been|will be] [home to|the home of] {n}[, {a}|, who is {a}|, aged {a}|].", "[At|Aged] {a}, {n} [moved to|settled in|found a home in|made a home in|went to live in] {h}.", "{n}, {a}, [of|from|living in|resident in|at home in] {h}[.|, {j}.|]",
        "[My name is|I am|I'm|Hello, I am] {n}[,| and] I am {a}[,| and] [I live in|my home is in|home is|I stay in] {h}.", "In {h} [lives|dwells|resides] {n}, [who is {a}|now {a}|a {j} of {a}].", "{n} ({h}) is {a}[ years old| now|][ and a {j}|].", "{n} ({a}) [works as|is] a {j} [and lives in|with a flat in|who stays in|at home in] {h}.",
        "The {j} {n}, {a}, [has rented a flat in|has a house in|spends the nights in|is a citizen of] {h}.", "{a}-year-old {n} [now lives in|has a house in|shares a flat in|was given a flat in] {h}.", "[Ask|Write to|Greet] {n} in {h}[, {a} by now|, who will soon be {a}|, {a}].", "I am a {j} living in {h}; [the name is|they call me|I am called] {n}[, age {a}|, {a}|].", "[Since the wedding|For a year|Since May] {n} ({a}) has [had a house|been at home|had a flat] in {h}.",
        "[News|Gossip]: {n}, who [turns|turned|will be] {a} [soon|in May|today], [leaves us for a house|is going to live|will live|has found rooms] in {h}.", "{h} has a new [neighbour|resident|citizen]: {n}[ ({a})|, {a} years old|, {a}].", "{n}: {a}, {h}", "[Home|Lives in|Town]: {h}. [Name|Person]: {n}. Age: {a}.", "{a} is the age of {n}, {h} the place where [she|he] lives."),
        n=_NAME, a=_AGE, h=_HOME, j=_JOB),
    _frame((
        "{n} was born in {b}[ in {y}|] and [now |]lives in {h}.", "{n}, [a native of|born in|a child of] {b}, [now lives|is at home|has a flat|has settled] in {h}.", "[Now|Today] at home in {h}, {n} [was born in|first saw the light in] {b}.", "{n} left {b}, [the town of birth|the native town], for [a house in|a new home in|a life in] {h}.", "{h} is where {n} lives; {b} is where [she|he] was born[, in {y}|].",
        "Born {y} in {b}, {n} is [at home|living|a resident] in {h}.", "[Birthplace|Place of birth|Born in] {b}, [home|living in|residence] {h}: [that is|this is] {n}.", "I was born in {b}, my name is {n}, and my flat is in {h}.", "{n} ([born in|native of] {b}) has a house in {h}.", "{h} is the home of {n}, {b} the birthplace."),
        n=_NAME, b=_BIRTH, h=_HOME, y="year born_year birth_year year_of_birth born_when"),
    _frame((
        "{n} lives in {h} and works in {w}.", "{n} [drives|commutes|cycles|takes the train] from {h} to [the office|a job|work] in {w}.", "{n} has [an office|a job|a desk] in {w} but [a house|a bed|a home] in {h}.", "[Working|Employed] in {w}, {n} [goes home|returns] to {h} [at night|each evening].", "Home for {n} is {h}, work is [over |]in {w}.", "{w} is where {n} works, {h} where [she|he] sleeps.", "{n} works for {f} in {w} and has a flat in {h}.", "From a house in {h}, {n} runs {f}, whose office is in {w}.", "{f} ({w}) has hired {n} from {h}."),
        n=_NAME, h=_HOME, w="place workplace works_in office_city place_of_work job_location work_town city_of_work", f="firm employer company firm works_for business"),
    _trip("flight", "flight flight_no flight_number plane flight_code"),
    _trip("train", "train train_no train_number service connection"),
    _trip("bus", "bus bus_no coach line_no bus_number"),
    _trip("ferry", "ferry boat ship_no crossing ferry_no"),
    _frame((
        "{t}, [a novel|a book|a thriller|a tale|an essay] [by|of|from the pen of] {a}[, came out in {y}|, appeared in {y}|], [has|runs to|fills] {p} pages.", "{a} is the [author|writer|creator] of {t}[, {p} pages|][, out since {y}|].", "{a}'s {t} [has|counts|comes to] {p} pages[ and is from {y}|].", "{a}: {t}. {u}, {y}. {p} pp.", "[In|Back in] {y} {u} [brought out|printed] {t} by {a}.",
        "[In|Back in] {y}, {a} [finished|completed|handed in] {t}, [all {p} pages of it|{p} pages long|a work of {p} pages].", "[I am reading|We discussed|She bought|I borrowed] {t} [by|of] {a}, {p} pages[, printed in {y}|].", "{a} needed {p} pages to tell {t}[, out in {y}|].", "[With|At] {p} pages, {t} is the [longest|best|first|last] book of {a}[ ({y})|].", "{a} wrote {t}.", "{t} was written by {a}[ in {y}|].", "Who wrote {t}? It was {a}[, in {y}|].",
        "{u} sells {t}, [written|penned] by {a}, since {y}.", "[The author|The writer|Novelist|Poet] {a} [called|named|entitled] the [new|first|last] book {t}[; it has {p} pages|].", "The pen of {a} gave us {t} in {y}.", "{y} saw the birth of {t} by {a}[ ({p} pages)|].", "{a} [signs|reads from|presents|talks about] {t} [tonight|at the fair|in the library][; {p} pages, {u}|].", "Title: {t}. Writer: {a}. {p} pages.", "For {t}, {p} pages, {a} got a prize in {y}.", "{p} pages by {a}: {t}[, {u}|, {y}]."),
        t="titled title book novel work book_title volume name_of_book", a="person author writer written_by novelist by creator author_name penned_by", y="year year published released came_out printed_in appeared year_of_publication", p="count pages page_count number_of_pages length_in_pages n_pages", u="firm publisher press house published_by printed_by"),
    _frame((
        "{d} [directed|shot|made|filmed] {t} with {l} [in the lead|as the star|as the hero][ in {y}|].", "{l} [stars|plays|shines|has the lead] in {t}, [directed|shot|filmed] by {d}[ ({y})|].", "{t} ({y}): director {d}, star {l}, {m} minutes.", "{t} [runs|lasts|takes] {m} minutes; {d} was behind the camera, {l} in front of it.", "{l} [got a prize|cried|is great] in {d}'s {t}.", "In {t}, {d} lets {l} [die|sing|fight|laugh] after {m} minutes.", "{d} gave {l} the lead in {t}, {m} minutes long."),
        t="titled title film movie picture film_title", d="person director directed_by film_maker shot_by", l="person star lead actor lead_role main_actor starring", y="year year released came_out", m="count minutes runtime length_minutes running_time duration"),
    _frame((
        "{s} [sings|sang|recorded|performs] {t}, [written|composed] by {c}[, on the album {b}|].", "{c} [wrote|composed] {t} for {s}[ in {y}|].", "{t}, words and music by {c}, is sung by {s}[ on {b}|].", "The voice on {t} is {s}, the [tune|music|song] is by {c}.", "{b} by {s} [opens|ends|begins] with {t}[, a song of {c}|].", "[In|Back in] {y} {s} had a hit with {t}, a song by {c}."),
        t="titled title song track tune name_of_song", s="person singer artist sung_by voice performer", c="person composer songwriter written_by music_by author", b="titled album record on_album disc", y="year year recorded released"),
    _frame((
        "{a} [beat|lost to|drew with|met|faced|took on|hosted|visited|held|crushed] {b}[, {s}| {s}| ({s})| by {s}][.|; {p} [got the goal|hit the net|was on target].|. Goal: {p}.|. The goal [came from|fell to] {p}.]", "{p} [hit the net|struck|netted|was on target|got one] for {a} [in the game with|in the match with|when they met|away to] {b}[ - {s}|, {s}|].", "[A goal|Two goals|The late goal] by {p} [gave {a} the win over|helped {a} past|was not enough for {a} in the match with] {b}[: {s}|, {s}|].", "{s} was [how it ended|the result] when {a} [met|faced|played host to] {b}[, {p} scoring|, with a goal by {p}|].",
        "[Result|Full time|Football|Hockey]: {a} {s} {b}[ ({p})|, {p}|]", "{a} - {b} {s}[, {p}|, goal {p}|]", "After {s} [against|with] {b}, {a} [thank|can thank] {p}, who [scored|got the goal].", "With {p} [on form|scoring|up front], {a} [got a|managed a|came home with a] {s} [against|away to|at home to] {b}.", "{b} [had no answer|had to yield|could do nothing] as {a} [won|took it] {s}[ through {p}|, {p} being the hero|].", "{p} of {a} scored [in|during] the {s} [against|with] {b}.", "Against {b}, {a} [ended|finished|played] {s}; the [goal|last shot] was {p}'s.",
        "It [ended|finished|was] {s} between {a} and {b}[, and {p} scored|. {p} scored|. Scorer: {p}|].", "{p} saved {a} [against|with a goal against] {b}: {s}.", "[We|Our team], {a}, [met|played] {b}. {s}. {p} [scored|did it].", "[The referee|The whistle] ended {a} against {b} at {s}[, {p} having scored|].", "[The {s}|A {s}] [against|over] {b} [pleased|helped|hurt] {a}[ and {p}, who scored|]."),
        a="team team side club own_side our_team home_team first_team squad", b="team opponent opponents rival other_team other_side away_team against visitors played_against adversary", s="score score result final_score outcome end_result", p="person scorer goal_by scored_by goalscorer goal_scorer who_scored"),
    _frame((
        "{w} beat {l}[ in the {g} final| at {g}|][, {s}| {s}|].", "{l} [lost to|was beaten by|gave up against|had no chance against] {w}[ at {g}| in {g}|][, {s}| ({s})|].", "[Champion|First|The cup for] {w}, [second|silver for|runner-up] {l}[: {s}|].", "The {g} [cup|title|medal] went to {w}, not to {l}[ ({s})|].", "{w} took {m} {m}#, {l} went home with nothing.", "{s} for {w} [against|over] {l}[ at {g}|].", "In {g}, {l} could not stop {w}[: {s}|].", "{l} [congratulated|hugged|thanked] the winner, {w}[, after the {s}|].", "It was {w} who won and {l} who lost[, {s}|]."),
        w="person winner champion won_by first_place victor gold", l="person loser beaten runner_up second_place lost_by silver", s="score score result final_score", g="thing event game contest discipline", m="money prize prize_money won_sum reward"),
    _frame((
        "{f} [wants|asks for|demands|claims] {m} {m}# [from {c} |]by {d}[ under {n}| (bill {n})|].", "[A|Another|The] [bill|claim|note|account] [over|for|of|worth] {m} {m}# [came|arrived|reached us] from {f}[ ({n})|, no. {n}|][, last day {d}|. Deadline {d}|. Pay before {d}|].", "{m} {m}# [is|are] [owed|payable] to {f} [by {d}|on {d}][, see {n}|, ref {n}|].", "{c} [owes|must pay|still owes] {f} {m} {m}#[, deadline {d}| before {d}|].", "{f} sent {c} [a bill|a claim|paper {n}] [over|for|of] {m} {m}#.",
        "Before {d}, {c} has to [send|wire|transfer] {m} {m}# to {f}[ for {n}|].", "{n}: {f}, {m} {m}#, [by|due|until] {d}", "Our [order|contract|deal] with {f} [over|for|about|worth|at] {m} {m}# [ends|runs out] on {d}.", "[Remember|Don't forget]: {f}, {n}, {m} {m}#, [by|until] {d}.", "{c} paid {f} {m} {m}# [for|against] bill {n}[, well before {d}|].", "[Cheque|Transfer|Payment] [over|of|for] {m} {m}# from {c} to {f}[, note {n}|].", "The sum [on|of] {n} is {m} {m}#; {f} [will wait|waits|can wait] until {d}.", "By {d} {f} must have {m} {m}#[, says {n}|]."),
        f="firm company firm supplier issuer billed_by vendor creditor biller paid_to payee", c="person customer client billed_to debtor payer who_pays", m="money amount total sum to_pay balance charged billed_amount how_much value", d="date due due_date deadline payable_by pay_before last_day by_when", n="code invoice invoice_no bill_no number reference document_no bill"),
    _frame((
        "{d} [examined|treated|saw|operated on|looked after|cured|sent home|called] {p}[, who has {i}|, ill with {i}| for {i}|].", "{d} [gave|prescribed] {p} {r}[ for {i}| against {i}|].", "{d} [found|diagnosed|discovered|noted] {i} in {p}[, now in room {w}|].", "{p} [went to|was seen by|was treated by|consulted|came to|waits for|thanks] {d} [because of|with|about|on account of] {i}.", "{p} [has|suffers from|is in with|was brought in with] {i}[ (bed {w})|, room {w}|]; [the doctor is|treated by|under] {d}.",
        "[Under|In the care of|At the surgery of] {d}, {p} [recovers from|fights|is getting over] {i}.", "{i} brought {p} to {d}[, room {w}|].", "[Unit|Room|Bed] {w}: {d} [attends to|looks after|is treating] {p}[ ({i})|].", "[Room|Bed] {w} [has|holds|is for] {p}[ with {i}|]; {d} [comes|visits|is on duty] [twice a day|at ten|tomorrow].", "{d}'s patient {p} [lies|is] in [room|bed] {w} with {i}.", "{p}, [a patient of|patient to|under] {d}, takes {r}[ for {i}|].", "On {d}'s orders {p} takes {r}[ against {i}|].", "{d} has put {p} in room {w} because of {i}.",
        "{d} took {p} [in|on] for {i}[, bed {w}|].", "It was {d} who [treated|saved|healed] {p}, [down with|sick with|laid low by] {i}.", "{d} [moved|sent] {p} to [room|unit] {w}: {i}.", "{i}, says {d} about {p}[ in room {w}|].", "With {i}, {p} was [driven|rushed|brought] to {d}."),
        p="person patient sick_person who_is_ill treated_person ill_person person_treated", d="medic doctor physician treated_by medic seen_by attending clinician treating_doctor surgeon", i="ill diagnosis illness disease complaint what_is_wrong condition finding", w="small ward room unit bed station room_no", r="drug drug medicine remedy prescribed takes"),
    _frame((
        "The {d} [feeds|is enough for|satisfies|fills] {p} [people|guests|eaters|persons] [after|in|with] {m} minutes[ of cooking| in the oven| of work|].", "[After|In|Within] {m} minutes [you have|there is|we had] {d} for {p}.", "{d}: {m} min, {p} portions", "{d}, {p} portions, {m} min", "{d} | {p} people | {m} minutes", "[Give|Allow|Leave] the {d} {m} minutes[; it makes|, it yields|, then share it out as] {p} [portions|helpings|plates].", "{p} [portions|helpings|plates|servings] of {d} [need|take|want|are ready in] {m} minutes[ at {t} degrees|].",
        "[My|Our] {d} [bakes|simmers|boils|stews|roasts|fries] [for |]{m} minutes[ at {t} degrees|] and [gives|makes|is for|yields] {p} [servings|portions|plates|people].", "For {p} [people|guests|servings] of {d} [plan|take|count|allow] {m} minutes.", "[Serves|Feeds|Makes] {p}. [Takes|Needs|Ready in] {m} minutes. [Dish:|Name:|Today:] {d}[.|]", "[Time|Minutes]: {m}. [Portions|People|Servings]: {p}. Dish: {d}", "[Leave|Keep|Bake|Fry|Boil] the {d} {m} minutes[, at {t} degrees|][. It is|, for|. You get] {p} [portions|servings|helpings].", "{m} minutes [on the stove|in the oven|of stirring] [and|, then] the {d} is [there|done] for {p} [hungry guests|people|friends].",
        "{p} can eat from the {d}, which [is done|is ready] [in|after] {m} minutes[ at {t} degrees|]."),
        d="dish dish meal recipe food what_is_cooked", m="count minutes time_needed cooking_time minutes_needed duration time_in_minutes cooks_for", p="small servings portions feeds people helpings number_of_portions for_how_many serves eaters", t="heat degrees oven_temperature temperature heat"),
    _frame((
        "{f} is [led|run|headed|managed] by {h}[; {w} works there as a {j}|].", "{w} works for {f} as a {j} under {h}.", "{h} of {f} [hired|pays|promoted|fired] {w}[, a {j}|].", "{w}, {j} at {f}, [earns|gets|is paid] {m} {m}#[; the boss is {h}|].", "At {f}, {w} is the {j} and {h} the boss.", "{f} pays {w} {m} {m}# [a month|a year].", "{h} gave {w} the job of {j} at {f}.", "The {j} at {f} is {w}[, who answers to {h}|].", "{f} has a new {j}: {w}[, for {m} {m}#|]."),
        w="person employee worker staff_member hired_person name", h="person boss manager head superior reports_to led_by", f="firm company employer firm works_for business", j="job job position post role occupation", m="money salary pay wage earns income"),
    _frame((
        "{a} [defends|represents|acts for|speaks for] {c}[, accused of {x}|] before {j}.", "{j} [sent|fined|freed|sentenced] {c}[ for {x}|][; {a} spoke for the defence|].", "{c} stands [in court|trial] for {x}; [judge|on the bench] {j}, [lawyer|counsel] {a}.", "{c} has hired {a} [against the charge of|because of|over] {x}.", "{a} [asked|begged] {j} to be mild with {c}.", "In the case of {c} ({x}), {j} listened to {a}, [the lawyer|counsel|who defends].", "{j} heard {a} and found {c} [guilty|not guilty] of {x}."),
        a="person lawyer counsel attorney defended_by defender represented_by", c="person client accused defendant charged_person on_trial", j="person judge court_led_by heard_by on_the_bench sentenced_by", x="crime crime charge offence accused_of"),
    _frame((
        "{t} teaches {p} {s}.", "{p} [learns|takes|studies|has] {s} with {t}[ and got {g} points|].", "{t} gave {p} {g} points in {s}.", "In {s}, {p} [got|has|reached] {g} points from {t}.", "{p} likes {t}'s lessons in {s}.", "{s} [lesson|class|test]: {t} [praised|helped|questioned|tested] {p}[, {g} points|].", "With {t} as teacher, {p} [passed|failed|began] {s}.", "{t} [wrote|complained|spoke] to the parents of {p} about {s}.", "{g} points for {p} in {s}, signed {t}."),
        t="person teacher tutor taught_by instructor lecturer examiner", p="person pupil student learner taught who_learns", s="subject subject course lesson class_subject field", g="small points mark grade score result"),
    _frame((
        "{n} [is|can be found] [at|on] {s}[, phone {p}|; call {p}|].", "[Call|Ring|Phone] {n} [on|under|at] {p}[; the house is on {s}|, at home at {s}|].", "{p} is the number of {n}, {s} the address.", "{s} - {n} - {p}", "{p}: {n}, {s}", "{n} of {f}: {p}, {s}, {m}", "[Letters|Parcels|Flowers] for {n} go to {s}, [calls|questions] to {p}.", "Whoever needs {n} dials {p} or [knocks|rings] at {s}.", "Good day, my name is {n}, I am at home at {s} and my number is {p}.", "{n} has moved to {s}; the [new |]number is {p}, [mail|write to] {m}.", "{m} or {p} reach {n} of {f}."),
        n=_NAME, p="phone phone telephone tel number mobile call phone_number", s="street street address road lives_at street_address house", f="firm company firm works_for employer", m="mail email mail e_mail mail_address write_to"),
    _frame((
        "{o} [put on|organised|set up|runs] the {e} in {p}, where {s} [speaks|will talk|gave a talk].", "{s} [speaks|talks|reads] at the {e} of {o} on {d}.", "[On|From] {d} the {e} [opens|begins] in {p}; [speaker|on stage|voice]: {s}[; organiser: {o}|].", "The {e} ({p}, {d}) was {o}'s idea; {s} [gave|opens with|holds] a speech.", "{o} invited {s} to [talk|speak] at the {e}[ in {p}|].", "At {t} {s} [speaks|goes on stage] [in|at] {p}, thanks to {o}, who organised the {e}.", "{e}, {p}, {d}, {t}: talk by {s}, organised by {o}."),
        e="event event occasion happening title_of_event", o="person organiser host organised_by set_up_by run_by", s="person speaker talk_by guest_speaker on_stage", p="place city place town location venue_city", d="date date day on_date when", t="clock time start_time begins hour"),
    _frame((
        "{m} [repaired|fixed|mended|looked at] {o}'s {i}[: {x}| ({x})|][ for {c} {c}#|].", "{o} brought the {i} to {m}[ because of {x}|]; [it cost|price|bill] {c} {c}#.", "{o} paid {m} {c} {c}# for [work on|the repair of] the {i}.", "The {i} of {o} [has|came in with] {x}; {m} [does|did] the repair.", "{x} on the {i}, says {m}; [owner|belongs to] {o}.", "{m} charged {o} {c} {c}#[ for {x}|]."),
        m="person mechanic repaired_by fixed_by craftsman handyman", o="person owner customer belongs_to client", i="thing item object thing repaired_thing", x="damage damage fault trouble defect", c="money cost price charged bill"),
    _frame((
        "ordered {a}, [arrived|delivered|here] {b}", "The {i} was ordered on {a} and [came|arrived|was delivered] on {b}.", "It [came|arrived] on {b}, though {n} ordered it on {a}.", "{n} ordered the {i} on {a}; [delivery|arrival] {b}.", "Delivery of the {i} on {b}, order of {a}.", "On {b} the {i} that {n} ordered on {a} was [brought|handed over]."),
        a="date ordered order_date ordered_on date_of_order bought_on", b="date delivered delivery_date arrived arrival_date came_on", i="thing item goods product", n="person customer buyer ordered_by client"),
    _frame((
        "The [card|pass|permit|visa] {c} was issued on {a} and [expires|ends|runs out] on {b}.", "{n}'s [card|pass|permit] is [good|valid] until {b}[; it was issued on {a}|, issued {a}].", "Valid till {b}, issued {a}[: {c}|, holder {n}].", "On {b} the [pass|permit] {c} of {n}, given out on {a}, [ends|is void].", "Issued: {a}. Expires: {b}. No. {c}."),
        a="date issued issue_date given_out issued_on date_of_issue", b="date expires expiry_date valid_until ends good_until expiry", c="code number document_no card_no pass_no", n="person holder owner name issued_to"),
    _frame((
        "{x} translated {t} by {a} [into|to] {l}.", "{a}'s {t} [is out|can be read] in {l}, [thanks to|translated by] {x}.", "{t} (by {a}, {l} by {x})", "In {l}, {t} is the work of {x}; {a} wrote it.", "{a} wrote {t}, {x} put it into {l}."),
        t="titled title book work novel", a="person author writer written_by novelist", x="person translator translated_by put_into_other_language", l="tongue language translated_into tongue target_language"),
    _frame((
        "{o} [lets|rents out|gives] the flat at {s} to {t} for {m} {m}#.", "{t} rents [from|the flat of] {o}[ at {s}|][, {m} {m}# a month| for {m} {m}#|].", "{t} pays {o} {m} {m}# for [rooms|the flat] at {s}.", "The flat at {s} [belongs to|is owned by] {o}; {t} lives in it[ for {m} {m}#|].", "{o} wants {m} {m}# [more |]from {t}[, {s}|].", "At {s}, {t} [complained|wrote] to {o} about the rent[ of {m} {m}#|]."),
        o="person landlord owner lets let_by landlady", t="person tenant renter lodger rents rented_by", s="street street address flat road", m="money rent monthly_rent price per_month"),
    _frame((
        "{o} and {i}, [a|the|a fine] {k} [of|aged] {a}, [came|walked in|live together].", "{i} is {o}'s {k}[ and {a} years old|, {a}|].", "{o} [feeds|walks|owns|has|sold] {i}, a {k}[ of {a}|].", "The {k} {i} belongs to {o}[ and is {a}|].", "[A|One] {k} called {i}[, {a} years old,|] [ran away from|lives with|sleeps beside] {o}.", "{o}'s {k} is called {i}.", "{k}: {i}, [owner|kept by|at home with] {o}[, age {a}|]."),
        o="person owner keeper belongs_to kept_by master", i="pet pet pet_name animal_name called", k="kind kind animal species what_animal", a="small age years_old how_old"),
    _frame((
        "[Box|Parcel|Package|Crate] {c} [went|was sent] from {f} to {t}[, sent by {s}|][, for {r}|].", "{s} in {f} [sent|shipped|mailed] {c} to {r} in {t}.", "{r} in {t} [got|received|awaits|signed for] {c} from {s}[ in {f}|].", "{c}: {s} ({f}) to {r} ({t})", "From {s} for {r}: {c}[, now in {f}|].", "To {r}, {t}. Sender {s}, {f}. No. {c}."),
        c="code parcel tracking_no tracking parcel_no shipment package", f="place origin sent_from from_city source", t="place destination to_city delivered_to_city target", s="firm sender shipper sent_by from_company", r="person recipient addressee receiver for_whom goes_to"),
)

# quantities of a thing, told apart by the unit: names of the field, the number with its unit, predicates of the thing
QUANTITIES: tuple[tuple[str, str, str], ...] = (
    ("minutes duration_minutes minutes_long time_in_minutes minutes_needed", "{v} minutes;{v} min;{v} minutes' time", "takes {v} minutes;lasts {v} minutes;is done in {v} minutes;needs {v} minutes"),
    ("hours n_hours hours_long hours_needed time_in_hours", "{v} hours;{v} h", "goes on for {v} hours;needs {v} hours;is over after {v} hours;runs {v} hours"),
    ("days n_days duration_days days_long", "{v} days", "stays {v} days;keeps for {v} days;takes {v} days"),
    ("kg weight_kg weight weighs kilos", "{v} kg;{v} kilos", "weighs {v} kg;brings {v} kilos to the scales;is {v} kg heavy"),
    ("euros price_euros price cost costs", "{v} euros;{v} EUR;€{v}", "costs {v} euros;is sold at {v} euros;goes for {v} euros;is {v} euros"),
    ("pages page_count n_pages number_of_pages", "{v} pages;{v} pp.", "has {v} pages;fills {v} pages;is {v} pages long"),
    ("people n_people serves for_how_many guests persons", "{v} people;for {v} people;{v} persons", "is for {v} people;serves {v} people;feeds {v} guests;is enough for {v}"),
    ("seats n_seats chairs capacity number_of_seats", "{v} seats", "has {v} seats;seats {v};offers {v} seats"),
    ("cm width_cm height_cm size_cm centimetres", "{v} cm;{v} cm wide", "is {v} cm wide;measures {v} cm;is {v} cm high"),
    ("metres length_m length height_m metres_long", "{v} m;{v} metres", "is {v} m long;is {v} metres high;reaches {v} metres"),
    ("km distance_km distance kilometres range_km", "{v} km;{v} kilometres", "goes {v} km;is {v} km away;covers {v} km"),
    ("litres volume_l volume holds_litres tank_size", "{v} litres;{v} l", "holds {v} litres;takes {v} litres;contains {v} litres"),
    ("degrees temperature heat degrees_celsius how_hot", "{v} degrees;{v}°C", "gets {v} degrees hot;needs {v} degrees;is kept at {v} degrees"),
    ("watts power_watts power wattage", "{v} watts;{v} W", "uses {v} watts;draws {v} W;has {v} watts"),
    ("rooms n_rooms room_count number_of_rooms", "{v} rooms", "has {v} rooms;is split into {v} rooms"),
    ("floors n_floors storeys levels", "{v} floors;{v} storeys", "has {v} floors;rises {v} storeys"),
    ("pieces stock n_pieces in_stock left", "{v} pieces;{v} in stock;{v} left", "is in stock {v} times;comes in {v} pieces;is there {v} times"),
    ("calories kcal energy energy_kcal", "{v} kcal;{v} calories", "has {v} calories;brings {v} kcal"),
    ("grams weight_g sugar_g grams_of_sugar", "{v} grams;{v} g", "holds {v} grams of sugar;has {v} grams of fat"),
    ("players n_players number_of_players", "{v} players", "is played by {v} players;needs {v} players"),
    ("points score n_points scored", "{v} points", "got {v} points;is worth {v} points"),
    ("stars rating n_stars rated", "{v} stars", "got {v} stars;is rated {v} stars"),
    ("chapters n_chapters parts", "{v} chapters", "has {v} chapters;is told in {v} chapters"),
    ("miles distance_miles mileage miles_driven", "{v} miles", "has run {v} miles;is {v} miles off"),
    ("years age age_years years_old", "{v} years;{v} years old", "is {v} years old;has been there {v} years"),
    ("wheels n_wheels number_of_wheels", "{v} wheels", "has {v} wheels;rolls on {v} wheels"),
)
# units that could be confused with each other in one text
ALIKE = (("people", "seats", "players"), ("cm", "metres"), ("km", "miles"), ("kg", "grams"), ("points", "stars"), ("pages", "chapters"), ("minutes", "hours", "days", "years"))
# fmt: on


def wording() -> str:
    """All words around the values."""
    return f"{FRAMES} {QUANTITIES}"
