"""Passages, facts of the user and turns of small talk, and functions that make samples of them with the values of
`everyday`.

A field is a letter for the kind of its value and perhaps a number: {n} a first name, {f} a full name, {p} a place,
{t} a time, {d} a day, {e} a date, {k} a price, {i} {h} numbers, {s} a street, {c} a code, {o} a colour, {g} a food,
{b} a drink, {j} a job, {w} a firm, {l} a title, {y} a year, {x} a telephone number, {m} an address, {v} a thing,
{a} a pet's name, {z} a plate, {u} a hobby, {q} a language, {r} what one is allergic to.
"""

# Phrases are long lines.
# ruff: noqa: E501, SIM905

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pocket.chat import Message
from pocket.words import Draw

Makers = Mapping[str, Callable[[Draw], str]]
Asked = list[tuple[str, str]]
_FIELD = re.compile(r"\{(\w+)\}")

# fmt: off
# passages: parts, separated by ` ~ `, of which all but the first may change places; then questions for each field; ^ is
# a new line
_READINGS = """\
NOTICE TO ALL TENANTS. The water will be off [on {d1}|this {d1}] from {t1} to {t2}. ~ [Buckets|Spare buckets] can be had from {n1} in flat {i1}. ~ {n2} from flat {i2} has [offered|agreed] to let the plumber in. ~ The plumber's name is {n3}.
d1: which day is there no water?; on what day do the taps run dry?; when will the supply be cut?; day of the cut?
t1: from when is the water off?; at what time does the cut start?; when do they turn the water off?
t2: when is the water back?; until what time is it off?; when do they turn it on again?; the cut ends at?
n1: who hands out buckets?; who has the spare buckets?; whom do I ask for a bucket?
n2: who opens up for the plumber?; who lets the plumber in?; who admits the workman?
n3: what's the plumber called?; who comes to mend the pipes?; the plumber's name?
i1: which flat has the buckets?; at what flat do I get a bucket?

Swimming lessons, summer term. Beginners meet on {d1} at {t1} with {n1}. ~ The advanced group swims on {d2} at {t2} and is taught by {n2}. ~ A term costs {k1} for members and {k2} for everyone else.
d1: when do the beginners swim?; on which day is the class for novices?; what day do first-timers come?
t1: at what time do beginners start?; starting time of the novice group?
n1: who takes the beginners?; who is the beginners' coach?; who instructs the novices?
d2: what day does the advanced group meet?; when is the class for good swimmers?
t2: at what hour does the advanced group get in?; time of the advanced lesson?
n2: who teaches the advanced group?; who coaches the better swimmers?
k1: what do members pay?; price for members?; how much is a term if I belong to the club?
k2: what do non-members pay?; fee for people outside the club?; how much without a membership?

{p1} - A lorry [overturned|tipped over] on {s1} early on {d1}, spilling {h1} crates of apples. ~ The driver, {f1}, was unhurt. ~ Police officer {f2} closed the road at {t1}. ~ It was clear again by {t2}.
p1: where did it happen?; which town had the accident?; what place is this about?
s1: on which road did the lorry tip over?; where did the lorry fall?; name of the road?
d1: what day was the accident?; when did the truck overturn?
h1: how many crates were lost?; how many boxes fell off?; number of crates?
f1: who was driving?; who was at the wheel?; name of the driver?; who drove the truck?
f2: which officer shut the road?; who blocked the road?; the police officer's name?
t1: when was the road shut?; closing time of the road?
t2: by what time could one pass again?; when was the road free?; when did they reopen it?

Hi {n1}, just so you know: {n2} picks you up at the station at {t1}, and {n3} cooks tonight. ~ Your room is number {i1}. ~ The code for the front door is {c1}. ~ Breakfast is from {t2}. See you, {n4}
n1: who is this letter to?; who gets this mail?; to whom is it written?; who is the guest?
n2: who fetches the guest?; who comes to the station?; who meets me off the train?
n3: who makes dinner?; who is at the stove this evening?; who prepares the meal?
n4: who wrote this?; who signed it?; who is the sender?; from whom is the mail?
t1: when is the pick-up?; at what time is somebody at the station?
i1: which room is it?; room number?; where does the guest sleep, which number?
c1: how do I get in?; what opens the front door?; door code?
t2: from when can one eat in the morning?; earliest breakfast?; when is breakfast served?

Minutes, {e1}. In the chair: {f1}. Notes: {f2}. Absent: {f3}. ~ {n1} will ask three firms for prices. ~ {n2} will paint the fence. ~ The budget for the fence is {k1}. ~ Next meeting: {e2}.
e1: what is the date of this meeting?; when did they meet?; on which date were these minutes taken?
f1: who chaired?; who led the meeting?; who presided?
f2: who took notes?; who wrote the minutes?; who was the secretary?
f3: who was missing?; who did not come?; who wasn't there?
n1: who asks for offers?; who gets the quotes?; who is to contact the firms?
n2: who paints the fence?; who puts colour on the fence?; whose job is the painting?
k1: how much may the fence cost?; what is the budget?; how much money is set aside?
e2: when do they meet again?; date of the next meeting?; when's the following one?

Room to let on {s1}, [quiet|sunny], third floor. Rent {k1} a month, deposit {k2}. ~ Free from {e1}. ~ To look at it, ring {n1} on {x1}. ~ The contract is signed with the owner, {f1}.
s1: where is the room?; which street is it in?; street?
k1: what is the rent?; monthly price?; what does one pay each month?; how much per month?
k2: how high is the deposit?; how much must be left as security?; deposit?
e1: from when can one move in?; when is it available?; free as of?
n1: whom do I call to see it?; who shows the room?; contact for a viewing?
x1: which number do I ring?; phone number?; what number is given?
f1: who owns it?; who is the landlord?; whose room is it?; with whom does one sign?

[Rovers|United|The home side] {i1}, Visitors {i2}. {n1} scored the first goal, {n2} the last. ~ {n3} was sent off in the {i3}th minute. ~ The referee was {f1}. ~ {h1} people [watched|came|paid to see it].
n1: who opened the scoring?; who got the first goal?; who scored first?
n2: who scored last?; who got the final goal?; the last goal was by?
n3: who got a red card?; who had to leave the pitch?; who was dismissed?
i3: in which minute was the red card?; what minute saw the sending-off?
f1: who had the whistle?; who was in charge of the match?; referee?; name of the ref?
h1: how many spectators?; how big was the crowd?; attendance?; how many were in the ground?
i1: how many goals did the home side get?; goals at home?
i2: how many did the visitors score?; goals of the away side?

House rules. Quiet after {t1}. ~ Kitchen closes at {t2}. ~ Check-out by {t3}. ~ Towels: {k1} each. ~ Lost your key? That is {k2}. ~ Trouble at night: knock at {n1}'s door. ~ Bicycles: ask {n2}.
t1: from when must one be quiet?; when does the noise have to stop?; quiet hours start?
t2: until when can I cook?; when is the kitchen shut?; closing time of the kitchen?
t3: by when must I leave the room?; latest check-out?; departure time?
k1: what is a towel?; price of a towel?; how much to borrow a towel?
k2: what does a lost key cost?; fee for losing the key?; what do I pay if my key is gone?
n1: who helps at night?; whom do I wake in an emergency?; whose door at night?
n2: who lends bikes?; whom do I ask for a bicycle?; who is in charge of the bikes?

Walk of the week: from {p1} to {p2}, {i1} km. ~ Bring boots; {n1} carries the first-aid box and {n2} the map. ~ We set off at {t1} and hope to be back at {t2}. ~ Lunch is in {p3}.
p1: where does the walk start?; starting point?; from where do they go?
p2: where does the walk end?; what is the goal?; final stop?; where do they arrive?
i1: how long is the route?; how many kilometres?; length of the walk?
n1: who has the first-aid box?; who takes the plasters?; who brings the plaster kit?
n2: who has the map?; who brings the map?; who finds the way?
t1: when do they leave?; departure?; start time?
t2: when are they back?; expected return?; when does it end?
p3: where do they eat?; in what place is the lunch?; lunch stop?

Dear diary, {n1} called at {t1}, as ever too early. ~ I lent my {v1} to {n2}. ~ {n3} gave me a book, {l1}. ~ Dinner with {n4} at {t2}, we had {g1}. Tired now.
n1: who rang?; who phoned?; whose call was too early?
t1: when did the phone ring?; at what time was the call?
n2: who has borrowed something?; who has my {v1} now?; to whom did I lend the {v1}?
v1: what did I lend out?; what did {n2} borrow?
n3: from whom is the book?; who gave me the present?; who handed me a book?
l1: what's the book called?; title of the present?; which book did I get?
n4: who was my company at dinner?; with whom did I eat?; who dined with me?
g1: what was on the table?; what did we eat?; what was for dinner?
t2: when was dinner?; at what time did we eat?

[Serves|For] {i1} people. Soak {h1} g of beans overnight. ~ Boil for {i2} minutes, then bake for {i3}. ~ Oven: {h2} degrees. ~ My aunt {n1} adds honey, my neighbour {n2} mustard. ~ Recipe sent in by {n3}, {p1}.
i1: for how many is it?; how many portions?; how many can eat?
h1: how many grams of beans?; weight of the beans?; how much do I soak?
i2: how long does it boil?; boiling time?; minutes in the pot?
i3: how long does it bake?; minutes in the oven?; baking time?
h2: how hot is the oven?; oven temperature?; at how many degrees?
n1: who puts in honey?; who uses honey?; who sweetens it?
n2: who adds mustard?; who likes it with mustard?
n3: who sent the recipe?; who contributed it?; whose recipe is it?
p1: where does the sender live?; from which place came the recipe?

FERRY [TIMES|TIMETABLE] {p1} - {p2}: first boat {t1}, last boat {t2}. ~ Adults {k1}, children {k2}, dogs {k3}. ~ Captain: {f1}. ~ Tickets on board from {n1}.
p1: where does it depart from?; port of departure?; starting harbour?
p2: where does it sail to?; destination?; arrival port?
t1: when is the earliest crossing?; when does the first one sail?; first departure?
t2: when is the latest crossing?; when's the last one?; final sailing?
k1: what does a grown-up pay?; adult fare?; price for an adult?
k2: what does a child pay?; fare for kids?; how much for a child?
k3: what does my dog cost?; fare for a dog?; how much to bring a dog?
f1: who is the skipper?; who commands the boat?; who steers?
n1: who sells tickets?; from whom do I buy?; who takes the fares?

[Lost|Lost and found]: a {o1} suitcase, left on the {t1} train to {p1}. ~ Finder: {n1}, conductor. ~ Owner: probably {n2}, whose name is on the tag. ~ It is kept in locker {i1}. ~ Fee for storage: {k1}.
o1: what colour is the suitcase?; its colour?; colour of the luggage?
t1: which train was it on?; what time was the train?
p1: where was the train going?; destination of the train?
n1: who found it?; who picked it up?; finder's name?; name of the conductor?
n2: to whom does it belong?; whose suitcase is it?; who owns it?; who lost it?
i1: in which locker is it?; where is it now, what locker?; locker no?
k1: what does storage cost?; how much is the fee?; what must be paid to get it?

[Weather|Outlook] for {p1}: [sun|fog|showers] until {t1}, [rain|wind|cloud] later. High {i1}, low {i2} degrees. ~ Wind of {i3} km/h. ~ Sunrise {t2}, sunset {t3}. ~ Report by {f1}.
p1: which place is the forecast for?; where is this weather?; area?
i1: how warm will it get?; the maximum?; warmest temperature?; the high?
i2: how cold does it get?; the minimum?; lowest temperature?; the low?
i3: how strong is the wind?; wind speed?; how fast does it blow?
t2: when does the sun come up?; sunrise?; when is it light?
t3: when does the sun go down?; sunset?; when does it get dark?
f1: who made the forecast?; who reports?; whose report is it?

FOR SALE: {o1} bicycle, {i1} gears, new {h1}, now {k1}. ~ Bought {y1}, last serviced {y2}. ~ Seller: {n1}, {s1}. ~ Helmet from my son {n2} goes with it. ~ Write to {m1}.
o1: which colour is the bike?; colour?; what colour?
i1: how many gears?; number of gears?
h1: what did it cost when new?; original price?; price at first?
k1: what does it cost now?; price they want?; how much do they want?
y1: when was it purchased?; year of purchase?; in what year did they buy it?
y2: when was the last service?; in which year was it last checked?
n1: who is selling?; seller?; from whom do I buy the bike?
n2: whose helmet is it?; who wore the helmet?; name of the son?
s1: where does the seller live?; address of the seller?
m1: which mail address?; where do I write to?; e-mail?

{t1} {n1} on duty. {t2} alarm in hall {i1}, false. {t3} {n2} takes over. ~ Radio with {n3}, torch with {n4}.
t1: when does the first watch begin?; from when was {n1} on duty?; when did {n1} start?
t2: when did the alarm go off?; time of the alarm?; at what time was the false alarm?
t3: when did the shift change?; at what time does {n2} start?; when was {n1} relieved?
i1: which hall had the alarm?; in what hall was it?; hall number?
n1: who had the first watch?; who began the log?; who was on duty at first?
n2: who had the second watch?; who relieved {n1}?; who came after {n1}?
n3: who has the radio?; who carries the radio?
n4: who has the torch?; with whom is the light?; who holds the lamp?

Order {c1} for {f1}. {i1} {v1}s at {k1} each, postage {k2}. ~ Packed by {n1}, checked by {n2}, carried by {n3}. ~ Leaves us on {d1}, reaches you on {d2}.
c1: what is the order number?; reference?; number of the order?
f1: who is the customer?; who ordered?; for whom is it?
i1: how many were ordered?; quantity?; number of pieces?
k1: price of one?; unit price?; how much is each?
k2: what is the postage?; shipping cost?; how much for sending?
n1: who put it in the box?; who packed it?; the packer?
n2: who checked it?; who inspected the order?; who looked it over?
n3: who brings it?; who transports it?; who is the courier?; who delivers?
d1: when is it sent?; when does it ship?; day of dispatch?
d2: when does it come?; arrival day?; when do they get it?; delivery day?

{l1}, a play in {i1} acts. Written by {f1}, staged by {f2}, with {f3} as the queen. ~ Curtain up at {t1}, interval at {t2}. ~ Front rows {k1}, balcony {k2}. ~ Until {e1}.
l1: what is the play called?; which play is on?; name of the piece?
i1: how many acts?; number of acts?
f1: who is the playwright?; who wrote it?; author?; from whose pen is it?
f2: who staged it?; who put it on the stage?; whose production is it?
f3: who plays the queen?; who is on stage as the queen?; who has the royal role?
t1: when does it start?; beginning?; when does the curtain rise?
t2: when is the break?; what time is the interval?; pause at?
k1: how much are the front rows?; price at the front?; best seats cost?
k2: how much is the balcony?; price upstairs?; what does one pay for the balcony?
e1: until when does it run?; last performance?; when does it end its run?

School trip, class {i1}. Bus leaves {t1}, returns {t2}. ~ Teachers: {f1} (front of the bus) and {f2} (back). ~ Nurse on call: {f3}. ~ Pocket money: at most {k1}. ~ Forms go back to {n1} by {d1}.
i1: which class goes?; what class is it for?
t1: departure of the bus?; when do the kids leave?; when does the coach set off?
t2: when are they home again?; when does the coach return?; return time?
f1: which teacher sits in front?; who is at the front of the bus?
f2: which teacher sits at the back?; who is in the rear of the bus?
f3: who helps if a child is ill?; the nurse's name?; who gives first aid?
k1: how much money may a child bring?; limit for pocket money?; the most one may take along?
n1: who collects the forms?; to whom do the forms go?; who gets the slips?
d1: by when are the forms due?; last day for the forms?; deadline?

Hello neighbours! While I'm away until {e1}, {n1} feeds the cat, {n2} empties the letter box and {n3} has my car. ~ The vet is {f1}, {x1}. ~ Spare key under the {o1} pot. ~ The cat is called {a1}. Love, {n4}
e1: when is the writer back?; until when is the owner away?; date of return?
n1: who gives the cat food?; who cares for the cat?; who looks after the animal?
n2: who takes out the post?; who collects the mail?; who sees to the letters?
n3: who has the car?; who is driving the car now?; with whom is the vehicle?
f1: who is the vet?; which doctor treats the cat?; animal doctor?
x1: number of the vet?; what do I dial if the cat is ill?; vet's phone?
o1: which pot hides the key?; colour of the pot?; under what colour of pot is the key?
a1: what's the cat called?; name of the pet?; cat's name?
n4: who is away?; who wrote the note?; whose cat is it?; who signs?

Museum [of Salt|of Toys|of Clocks], {p1}. Summer hours {t1} - {t2}. ~ Grown-ups {k1}, pupils {k2}, under six free. ~ Founded in {y1} by {f1}, now headed by {f2}. ~ Workshop with {n1} every {d1}.
p1: where is it?; which town has it?; town?
t1: opening time?; when does it open?; from when can one go in?; doors open at?
t2: closing time?; when does it shut?; until when is it open?
k1: adult ticket?; price for adults?; what do grown-ups pay?
k2: how much for a pupil?; school kids pay?; student price?
y1: when was it set up?; founding year?; how old is it, since what year?
f1: who set it up?; founder?; who started the museum?
f2: who heads it today?; present head?; who leads it now?
n1: who gives the workshop?; who holds the workshop?; the workshop is with whom?
d1: which day is the workshop?; when is the workshop?

[STAFF|TEAM] NEWS. {f1} retires on {e1} after {i1} years. ~ {f2} follows as head of sales. ~ {f3} moves to our office in {p1}. ~ Farewell cake at {t1} in room {h1}, baked by {n1}.
f1: who retires?; who stops working?; who is leaving for good?; who goes into retirement?
e1: when is the last day?; date of the retirement?
i1: after how many years?; how long was the career?; years of service?
f2: who is the new head of sales?; who takes over sales?; the successor?
f3: who changes offices?; who is transferred?; who goes to {p1}?
p1: to which town does {f3} move?; where is the other office?
t1: when is the cake?; time of the farewell?; when do they say goodbye?
h1: which room is the party in?; room of the farewell?; where is the cake, what room?
n1: who made the cake?; who baked?; from whose oven is the cake?

[{n1}|{n1}:] anyone got a ladder? {n2}: yes, but {n3} borrowed it on {d1}. {n4}: I can drive you to {p1}, they rent them for {k1} a day.
n1: who needs a ladder?; who is looking for a ladder?; who asks?
n2: who owns a ladder?; whose ladder is it?
n3: who has the ladder at the moment?; who borrowed it?; with whom is it?
d1: when was it borrowed?; on which day did it leave?
n4: who offers a lift?; who has a car?; who can drive?
p1: where can one rent a ladder?; to which place is the drive?
k1: what does it cost to rent?; daily price?; rent per day?

Choir: sopranos on {d1}, basses on {d2}, everybody on {d3}. ~ {n1} plays the piano, {n2} conducts, {n3} orders the scores. ~ Concert {e1}, {t1}. ~ Membership {k1} a year.
d1: when do sopranos practise?; day for the high voices?; soprano day?
d2: when do the basses practise?; day for the low voices?; bass day?
d3: when does the whole choir meet?; day for all?; when do they sing together?
n1: who is at the piano?; who accompanies?; pianist?
n2: who leads the choir?; who stands in front with the baton?; conductor?
n3: who gets the sheet music?; who buys the scores?; who sees to the music sheets?
e1: when's the concert?; date of the concert?; concert date?
t1: what time is the concert?; concert begins at?
k1: what does it cost to be a member?; fee per year?; annual fee?

Patient {f1}, born {y1}, seen by Dr. {f2}. Sent by Dr. {f3}. ~ Temperature {i1}, pulse {h1}. ~ One pill at {t1}, two at {t2}. ~ Back on {e1}. ~ In an emergency call the sister, {n1}.
f1: who is ill?; who is the patient?; name of the patient?
y1: birth year?; when was the patient born?
f2: which doctor saw the patient?; who examined the patient?; who was the doctor on the day?
f3: who referred the patient?; who sent the patient?; from which doctor did the patient come?
h1: what was the pulse?; heart rate?; beats per minute?
i1: what was the temperature?; how warm was the patient?
t1: when is the single pill?; when does one take one pill?
t2: when are two pills due?; time for two pills?
e1: when is the next visit?; when to come back?; follow-up date?
n1: whom do I call in an emergency?; contact person?; emergency contact?

Garden club swap, {d1}. {n1} brings seeds, {n2} brings tea, {n3} brings chairs. ~ Starts {t1}, tidying up at {t2}. ~ Stall {i1} is mine, stall {i2} is for the school. ~ Best pumpkin last year: {n4}, {i3} kilos.
d1: what day is the swap?; when is it?; which day?
n1: who supplies seeds?; who has the seeds?; seeds come from?
n2: who is responsible for tea?; who makes sure there is tea?; tea comes from?
n3: who provides chairs?; who sees that people can sit?; chairs come from?
t1: when does it start?; begin?; from what time?
t2: when do they clean up?; when is clearing up?; time to tidy?
i1: which stall is the writer's?; my stall?
i2: which stall has the school?; number of the school's stall?
n4: who grew the biggest pumpkin?; last year's winner?; who won the pumpkin prize?
i3: how heavy was the pumpkin?; weight of the winning pumpkin?

Car {z1}, {o1}, parked in bay {i1}. ~ Registered to {f1}; [today|now] driven by {f2}. ~ Next inspection {e1}. ~ Ticket of {k1} issued at {t1} by warden {n1}.
z1: what's the plate?; registration?; number plate of the car?
o1: colour of the car?; which colour is it?
i1: where does it stand, which bay?; bay?; parking bay number?
f1: whose car is it on paper?; owner?; who is the registered keeper?
f2: who is driving it?; who is at the wheel today?; the driver?
e1: when is the inspection?; next check?; when must it be tested?
k1: how high was the fine?; what does the driver have to pay?; amount of the ticket?
t1: when was the ticket written?; time of the fine?
n1: who wrote the ticket?; which warden was it?; who fined the driver?

To whom it may concern: {f1} worked for {w1} from {y1} to {y2} as a {j1}. ~ {f2} was the direct superior. ~ This letter was typed by {n1} and signed by {f3}. ~ Questions: {x1}.
f1: who is the letter about?; whose reference is it?; who worked there?; the employee?
w1: which company?; for whom did {f1} work?; employer?
y1: when did the job begin?; first year there?; since what year?
y2: when did the job end?; last year there?; until which year?
j1: what was the job?; position?; as what did {f1} work?
f2: who was the boss?; who was {f1}'s superior?; manager?
n1: who typed it?; who wrote it on the machine?; typist?
f3: who signed?; whose signature is on it?; signatory?
x1: where can one ring?; number for questions?; telephone?

Library. Borrowing: {i1} books for {i2} days. Late: {k1} per day. ~ Story hour with {n1} on {d1}, homework help with {n2} on {d2}. ~ Card lost? {k2}. ~ The head librarian is {f1}, the IT desk is {f2}.
i1: how many books may I take?; limit of books?; number of books at once?
i2: for how long may I keep them?; loan period in days?; how many days can I have a book?
k1: fine per day?; what if I'm late, per day?; late fee?
n1: who reads stories?; who does the story hour?; storyteller?
d1: when are stories read?; story hour day?
n2: who helps with homework?; homework helper?
d2: when can one get homework help?; day for homework?
k2: what is a new card?; cost of a lost card?; replacing the card costs?
f1: who is in charge of the library?; head?; who leads the library?
f2: who helps with computers?; who is at the IT desk?; computer trouble, whom do I ask?

New: the {l1} kettle, {k1} litres, {h1} watts, in {o1} or {o2}. ~ Now {k2}, was {k3}. ~ Guarantee: {i1} months. ~ Tested by {n1}, drawn by {n2}, made in {p1}.
l1: which kettle is it?; model?; name of the kettle?
k1: how much water does it hold?; volume?; litres?
h1: how many watts?; power?; wattage?
k2: present price?; what does it cost now?; new price?; offer price?
k3: old price?; what did it cost before?; earlier price?
i1: how many months of guarantee?; how long is the warranty?; guarantee?
n1: who tried it out?; who tested it?; tester?
n2: who designed it?; designer?; who drew the kettle?
p1: where is it produced?; made where?; country or town of make?

Flight {c1} [to|for] {p1}: boarding {t1}, take-off {t2}, landing {t3}. Gate {i1}, row {i2}. ~ Captain {f1}, first officer {f2}, cabin chief {f3}. ~ [Extra|Second] bag: {k1}.
c1: flight number?; which flight?; what is the flight called?
p1: where does it fly?; destination?; where to?
t1: when does one get on?; boarding time?; when do they let people on?
t2: when does it leave the ground?; departure?; when does the plane leave?
t3: arrival?; when does it touch down?; when are we there?
i1: which gate?; gate?; from what gate?
i2: which row?; row?; where do I sit, what row?
f1: who flies the plane?; who is in command?; captain?
f2: who is the co-pilot?; second in the cockpit?; first officer?
f3: who is in charge of the cabin?; who leads the crew in the cabin?
k1: price of a second bag?; what does more luggage cost?; extra bag?

Court list, {d1}, hall {i1}. Judge: {f1}. {f2} sues {f3} over a {v1}. ~ For {f2}: lawyer {f4}. ~ Start {t1}. ~ Witness: {f5}.
d1: which day is it?; day of the hearing?; when is the case heard?
i1: which hall?; hall?; in what hall do they meet?
f1: who judges?; who is on the bench?; who decides the case?
f2: who brought the case?; who complains?; who is the plaintiff?; who sues?
f3: who is accused?; who is being sued?; the defendant?; against whom is it?
v1: what is the quarrel about?; over what do they fight?; thing at issue?
f4: who is the lawyer?; who speaks for {f2}?; attorney?
t1: when does it begin?; start?; at what time?
f5: who saw it?; who testifies?; the witness?

WANTED: waiter for {w1} in {p1}. {i1} hours a week, {k1} an hour. ~ Trial day: {d1}. ~ Ask for {n1} in the kitchen, not for {n2} at the bar. ~ Papers to {m1}. ~ Starts {e1}.
w1: who is hiring?; which business?; where would I work, which firm?
p1: in which town?; where is the job?; town?
i1: hours per week?; how much work a week?; weekly hours?
k1: hourly pay?; wage?; what do they pay an hour?
d1: when is the trial?; trial day?; what day do I show my skills?
n1: for whom should I ask?; who is the right contact?; whom do I talk to?
n2: whom should I not ask?; who works at the bar?; who is at the bar?
m1: where do papers go?; address for papers?; mail for applicants?
e1: when does the job begin?; first day?; start date?

My grandmother {n1} came from {p1}, my grandfather {n2} from {p2}. ~ They met in {p3} in {y1} and married in {y2}. ~ Their eldest was {n3}, the youngest {n4}. ~ The house on {s1} was built by {n5}.
n1: grandma's name?; who was the grandmother?; what was granny called?
p1: where was granny from?; home of the grandmother?
n2: grandpa's name?; who was the grandfather?
p2: where was grandpa from?; home of the grandfather?
p3: where did the two meet?; place of their first meeting?
y1: when did they meet?; year of the first meeting?
y2: when was the wedding?; in what year did they marry?; wedding year?
n3: who was born first?; the oldest child?; first child?
n4: who was born last?; the youngest child?; baby of the family?
s1: where was the house?; street of the house?
n5: who built the house?; builder?; by whose hands is the house?

Bake sale [report|result]: {n1} sold {i1} pies, {n2} {i2} rolls. ~ {n3} counted the till: {k1}. ~ The money goes to {w1}. ~ {n4} washed up.
n1: who sold pies?; pie seller?; who was in charge of pies?
i1: how many pies were sold?; number of pies?
n2: who sold rolls?; roll seller?
i2: how many rolls?; number of rolls sold?
n3: who counted the money?; who did the till?; who added it up?
k1: how much came in?; takings?; what was in the till?
w1: who gets the money?; for whom was it?; where does the money go?
n4: who did the dishes?; who cleaned the plates?; who stood at the sink?

Trail guide: [hut|cabin] {l1}, {h1} m up. Warden {n1}, open {e1} to {e2}. ~ Bed {k1}, floor {k2}. ~ Water from the spring {i1} minutes away. ~ Rescue: {x1}. ~ Next hut: {l2}, {i2} hours.
l1: name of the hut?; which cabin is it?
h1: how high is it?; altitude?; metres?
n1: who minds the hut?; who is the warden?; who lives up there in season?
e1: from when is it open?; season start?; first day?
e2: until when is it open?; season end?; last day?
k1: price of a bed?; what's a bed?; what does it cost to sleep in a bed?
k2: price on the floor?; what does the floor cost?
i1: how far is the spring, in minutes?; how long to fetch water?
x1: number for help?; rescue number?; whom do I dial in danger?
l2: what is the following hut?; next cabin?; where can I go after that?
i2: how many hours to the next hut?; time to the next one?

[Re: parking|Subject: parking]. {f1} will have bay {i1} from {e1}, {f2} keeps bay {i2}. ~ Visitors use the yard behind {s1}. ~ The barrier opens with {c1}. ~ {n1} hands out stickers, {n2} takes complaints.
f1: who gets a new bay?; who is given bay {i1}?
i1: which bay does {f1} get?; new bay?
f2: who stays in the old bay?; who holds on to bay {i2}?
i2: which bay does {f2} have?; bay of {f2}?
e1: from when does it hold?; start date?
s1: where do guests park?; visitors park behind what?
c1: what opens the barrier?; code of the barrier?; barrier code?
n1: who gives stickers?; from whom is the sticker?; sticker, whom do I ask?
n2: whom do I complain to?; who gets the complaints?; who listens if I am angry?

Cinema [Nova|Star|Palace]: {l1} at {t1}, {l2} at {t2}. ~ {f1} introduces the first film. ~ Popcorn {k1}, ice cream {k2}. ~ Seats for wheelchairs: tell {n1}. ~ Manager {n2}, projection {n3}.
l1: what's on first?; first film?; which film is at {t1}?
l2: what's on later?; second film?; which film is at {t2}?
t1: when is {l1}?; time of the first film?; first showing?
t2: when is {l2}?; time of the second film?; second showing?
f1: who speaks before the film?; who introduces?; who says some words first?
k1: how much is popcorn?; popcorn?
k2: how much is ice cream?; ice cream price?
n1: who arranges wheelchair seats?; whom to tell about a wheelchair?
n2: who runs the cinema?; who is the manager?; boss of the house?
n3: who shows the films?; who works the projector?; projectionist?

[Dear parents|Dear mums and dads], {n1} now drives the blue route and {n2} the red one. ~ The blue bus starts at {t1}, the red bus at {t2}. ~ A month is {k1}, a single ride {k2}. ~ Sick child? Text {n3} before {t3}.
n1: who drives the blue route?; blue driver?; who is at the wheel on blue?
n2: who drives the red route?; red driver?; who is at the wheel on red?
t1: when does blue leave?; start of the blue bus?
t2: when does red leave?; start of the red bus?
k1: monthly price?; how much for a month?; monthly pass?
k2: price of one ride?; single?; how much for one trip?
n3: who is told about a sick child?; whom do parents text?
t3: until when must they text?; before what time?

Boat {l1}, built {y1} in {p1}, {i1} m. ~ Owner {f1}, skipper {f2}. ~ Berth {i2}, paid until {e1}. ~ Engine by {w1}, sails by {w2}. ~ Mechanic: {n1}.
l1: name of the boat?; what's she called?
y1: year built?; when was she built?; how old, since which year?
p1: where was she built?; place of building?
i1: how long is she?; length?; metres?
f1: who owns the boat?; owner?; whose boat?
f2: who sails her?; skipper?; who commands the boat?
i2: which berth?; where is she tied up, which berth?
e1: until when is the berth paid?; berth runs out?
w1: who made the engine?; make of the engine?
w2: who made the sails?; sailmaker?
n1: who fixes the engine?; who repairs it?; mechanic?

Poll for mayor: {f1} {i1} percent, {f2} {i2} percent. ~ {h1} people were asked by {w1} in {p1}. ~ The vote is on {e1}. ~ {f1} wants [trams|trees], {f2} wants [car parks|a new school].
i1: how many percent has {f1}?; share of {f1}?
i2: how many percent has {f2}?; share of {f2}?
h1: how many were asked?; size of the poll?; number of people asked?
w1: who did the poll?; which firm asked people?; pollster?
p1: where was it?; which town votes?
e1: when do they vote?; election day?; when's the election?

Repair slip {c1}. Item: {v1}. Brought in by {n1} on {d1}, ready on {d2}. ~ Fault found by {n2}, parts from {w1}. ~ Labour {k1}, parts {k2}.
c1: slip number?; number on the slip?; reference?
v1: what is being repaired?; which thing is broken?; item?
n1: who brought it?; customer?; who came in with it?
d1: when was it brought in?; day it came?
d2: when can it be fetched?; when's it done?; pick-up day?
n2: who found the fault?; who looked at it?; technician?
w1: where do the parts come from?; supplier?; who supplies the parts?
k1: cost of the work?; labour?; what does the work cost?
k2: cost of the parts?; parts?; what do the parts cost?

Wedding of {n1} and {n2}, {e1}. Registry office {t1}, lunch {t2}, dance {t3}. ~ Best man {n3}, flowers by {n4}, cake by {n5}. ~ Rooms at {w1}, {k1} a night.
e1: when do they marry?; date?; wedding date?
t1: when is the ceremony?; registry office at?
t2: when do they eat?; lunch?
t3: when does the dancing start?; dance?; from when is there dancing?
n3: who is best man?; who stands by the groom?
n4: who does the flowers?; florist?; who brings the bouquet?
n5: who bakes the cake?; cake from?; confectioner?
w1: where do guests sleep?; hotel?; which house has rooms?
k1: price of a room?; per night?; what does a night cost?

[Farm shop|Farm stall], {d1} only, {t1} till {t2}. Eggs {k1} a dozen, milk {k2} a litre. ~ {n1} milks, {n2} picks, {n3} stands at the till. ~ [Orders|Advance orders]: {x1}.
d1: which day is it open?; what day can I shop?
t1: from when?; opens?; when does the shop open?
t2: till when?; closes?; when does the shop shut?
k1: eggs?; price of a dozen eggs?; what do eggs cost?
k2: milk?; price of milk?; what's a litre of milk?
n1: who milks the cows?; who works with the cows?
n2: who harvests?; who gathers the fruit?; picker?
n3: who takes the money?; cashier?; who serves the customers?
x1: number for orders?; phone?; where do I ring to order?

Chess evening. Board 1: {n1} beat {n2}. Board 2: {n3} lost to {n4}. ~ Board 3: {n5} and {n6} drew. ~ Clocks lent by {n7}. ~ [Again|Next time] on {d1} at {t1}.
n1: who won on the first board?; who beat {n2}?
n2: who lost on the first board?; who was beaten by {n1}?; whom did {n1} beat?
n3: who was the loser on board 2?; who was beaten by {n4}?
n4: who won on board 2?; who beat {n3}?
n7: whose clocks are they?; who lent the clocks?; who brought clocks?
d1: on what day is the next evening?; next time, which day?
t1: at what time is the next one?; next start?

Landlord to tenant: the rent goes up from {k1} to {k2} on {e1}. ~ {w1} reads the meters. ~ Rubbish is put out on {d1}, paper on {d2}. ~ The caretaker is {n1}, the chimney sweep {n2}.
k1: rent so far?; old rent?; what was paid before?
k2: new rent?; rent in future?; what is paid from then on?
e1: when does the rise start?; from when is it dearer?
w1: who reads the meters?; which firm comes for the meters?
d1: when is rubbish day?; bin day?; on which day does the rubbish go out?
d2: when is paper collected?; paper day?
n1: who looks after the house?; caretaker?; janitor?
n2: who cleans the chimney?; chimney sweep?; who sweeps?

{n1} and {n2} share a stall. {n1} brings {g1}, {n2} brings {g2}. ~ {n3} lends the tent, {n4} the van. ~ They pay {k1} for the pitch and took {k2}.
g1: what does {n1} sell?; {n1} brings what?
g2: what does {n2} sell?; {n2} brings what?
n3: whose tent is it?; who owns the tent?; the tent is from?
n4: whose van is it?; who owns the van?; the van is from?
k1: cost of the pitch?; what does the stall cost?; stall fee?
k2: how much did they earn?; takings?; what came in?

Yoga in the park. {d1} {t1} with {n1} (gentle); {d2} {t2} with {n2} (strong). ~ [Mats|A mat]: {k1}. ~ Pay {n3} in cash. ~ When it rains we meet at {s1}.
d1: when is the gentle class?; day of the gentle one?
t1: what time is the gentle class?
n1: who gives the gentle class?; gentle teacher?
d2: when is the strong class?; day of the strong one?
t2: what time is the strong class?
n2: who gives the strong class?; strong teacher?
k1: price of a mat?; mat?; what does it cost to borrow a mat?
n3: who takes the money?; whom do I pay?; cash goes to?
s1: where is it in bad weather?; place when wet?; where do we go if it pours?

Bulletin: {f1} was chosen as the new {j1} of {p1} with {h1} votes, {f2} got {i1}. ~ {f3} had held the post since {y1}. ~ The oath is on {e1}.
f1: who won?; who was elected?; who gets the post?
j1: which post was it?; what was {f1} chosen as?
p1: of which place?; where was the election?
h1: how many votes had the winner?; votes for {f1}?
f2: who lost?; who came second?; runner-up?
i1: votes for {f2}?; how many for the loser?
f3: who was in office before?; predecessor?; who steps down?
y1: since when had {f3} been in office?; start of the old term?
e1: when is the oath?; swearing-in?; when does {f1} swear?

[Support chat|Chat log]. {n1}: my order {c1} is late. Agent {n2}: sorry, it left {p1} on {d1}. {n1}: and the refund? Agent {n2}: {k1}, by {d2}, my colleague {n3} will see to it.
n1: who complains?; who is the customer?; who waits for an order?
c1: which order is late?; order number?
n2: which agent answers?; who works there?; who says sorry?
p1: from where was it sent?; where did it leave?
d1: when was it sent?; dispatch day?
k1: how much comes back?; refund?; amount of the refund?
d2: by when is the refund?; refund by?
n3: who handles the refund?; who sees to the money?; who pays it back?

Recipe swap: {n1}'s soup needs {i1} minutes, {n2}'s stew {i2}. ~ {n1} uses {g1}, {n2} uses {g2}. ~ {n3} tasted both and liked the {o1} pot best.
i1: how long does the soup take?; minutes for the soup?
i2: how long does the stew take?; minutes for the stew?
g1: what is in {n1}'s pot?; what does {n1} cook with?
g2: what is in {n2}'s pot?; what does {n2} cook with?
n1: who made soup?; whose dish is the soup?
n2: who made stew?; whose dish is the stew?
n3: who tasted?; who tried both?; taster?
o1: which pot was liked?; colour of the best pot?

Sailing race, {e1}. 1st {l1} ({n1}) in {t1}; 2nd {l2} ({n2}) {i1} seconds behind; last {l3} ({n3}). ~ Prize: {k1}, given by {w1}. ~ Starter: {n4}.
e1: when was the race?; date?
l1: winning boat?; which boat won?; first boat?
n1: who won?; skipper of the winner?; whose boat came first?
l2: which boat came second?; second boat?
n2: who came second?; runner-up?
l3: which boat was last?; slowest boat?
n3: who came last?; whose boat was slowest?
i1: by how many seconds was {l2} behind?; gap in seconds?
k1: how much was the prize?; prize money?
w1: who paid the prize?; sponsor?; prize donor?
n4: who started the race?; who fired the gun?; starter?

[Clinic|Surgery] hours: Dr. {f1} mornings from {t1}, Dr. {f2} afternoons from {t2}. ~ Reception: {n1}. Lab: {n2}. ~ Closed on {d1}. ~ A certificate costs {k1}.
f1: who works in the morning?; morning doctor?; whom do I see before noon?
f2: who works in the afternoon?; afternoon doctor?; whom do I see after lunch?
t1: morning hours from?; when does the morning start?
t2: afternoon hours from?; when does the afternoon start?
n1: who is at the front desk?; receptionist?; who answers at reception?
n2: who takes blood?; who is in the lab?; lab person?
d1: which day are they shut?; day off?; when are they not open?
k1: price of a certificate?; certificate?

Dear {n1}, thanks for the {v1}! {n2} wanted it at once, but I gave it to {n3}. ~ We are in {p1} till {e1}, then in {p2}. ~ {n4} sends a kiss. ~ Your old room is now {n5}'s. Yours, {n6}
n1: who is thanked?; who gets the letter?; addressee?
v1: what was the present?; thank you for what?
n2: who wanted it?; who asked for the {v1}?
n3: who has the {v1} now?; who got it in the end?
p1: where are they now?; present place?
e1: until when are they in {p1}?; when do they move on?
p2: where do they go next?; next place?
n4: who sends a kiss?; kiss from?
n5: who has the old room?; who sleeps in the old room now?
n6: who writes?; who signed the letter?; writer?

Server log. {t1} backup started by {n1}. {t2} disk {c1} full. {t3} {n2} freed {h1} GB. ~ Ticket {c2} is with {n3}. ~ Next backup {t4}.
t1: when did the backup begin?; backup start?
n1: who started the backup?; who set off the backup?
t2: when was the disk full?; when did the trouble start?
c1: which disk was full?; name of the disk?
t3: when was space freed?; when was it solved?
n2: who freed space?; who cleared the disk?; who cleaned up?
h1: how many GB?; how much was freed?
c2: ticket number?; which ticket?
n3: who has the ticket?; assignee?; with whom is the ticket?
t4: when is the next backup?; following backup?

[Exam|Oral exam] plan: {n1} at {t1} with examiner {f1}; {n2} at {t2} with examiner {f2}. ~ Room {h1}. ~ Notes are kept by {n3}. ~ Results on {e1}.
n1: which candidate is with {f1}?; who is examined at {t1}?
n2: which candidate is with {f2}?; who is examined at {t2}?
f1: who examines {n1}?; examiner at {t1}?
f2: who examines {n2}?; examiner at {t2}?
t1: when is {n1}'s turn?; time for {n1}?
t2: when is {n2}'s turn?; time for {n2}?
h1: which room?; room?; where are the exams?
n3: who keeps notes?; who writes it down?; note taker?
e1: when are the results out?; results?; when does one know?

Gym [card|offers]: day pass {k1}, month {k2}, year {k3}. ~ Trainer for weights {n1}, for running {n2}. ~ Sauna until {t1}, weights until {t2}. ~ Locker deposit {k4}.
k1: one day?; day pass?; what's a single day?
k2: one month?; monthly fee?; per month?
k3: one year?; annual price?; per year?
n1: who trains with weights?; weights coach?
n2: who trains runners?; running coach?
t1: sauna closes?; until when is the sauna on?
t2: until when can I lift?; weights room shuts?
k4: deposit for a locker?; locker deposit?

Bus {i1}: {p1} {t1}, {p2} {t2}, {p3} {t3}. ~ Single {k1}, return {k2}. ~ Complaints: {n1}. Lost things: {n2}.
i1: which bus?; line?; bus number?
t1: when does it leave {p1}?; {p1}?; time at {p1}?
t2: when is it in {p2}?; {p2}?; time at {p2}?
t3: when is it in {p3}?; {p3}?; time at {p3}?
p1: first stop?; where does it start?
p3: last stop?; where does it end?; terminus?
k1: one way?; single fare?; fare for one way?
k2: there and back?; return fare?; both ways?
n1: who hears complaints?; complaint desk?
n2: who has lost things?; I lost my bag, whom do I ask?
"""
# duties, separated by ` # `: active sentence, passive sentence, questions after `Who` in other words
_DUTIES = """\
{n} waters the tomatoes # the tomatoes are watered by {n} # gives the tomatoes water; takes care of the tomatoes; sees to the tomatoes
{n} runs the ferry # the ferry is run by {n} # is in charge of the ferry; operates the ferry; is the ferryman
{n} owns the mill # the mill is owned by {n} # is the owner of the mill; has the mill; does the mill belong to
{n} manages the hostel # the hostel is managed by {n} # runs the hostel; is in charge of the hostel; is the hostel's boss
{n} delivers the milk # the milk is delivered by {n} # brings the milk; is the milkman; does the milk come from
{n} brings the bread round # the bread is brought round by {n} # delivers the bread; carries the bread to the houses; distributes bread
{n} holds the spare key # the spare key is held by {n} # has the spare key; keeps the second key; looks after the spare key
{n} has charge of the till # the till is in the hands of {n} # counts the money; is the cashier; handles the cash
{n} sweeps the yard # the yard is swept by {n} # keeps the yard clean; cleans the yard; uses the broom
{n} teaches the little ones # the little ones are taught by {n} # instructs the small children; is the teacher of the little ones; gives the children lessons
{n} repairs the roof # the roof is repaired by {n} # mends the roof; fixes the roof; puts the roof right
{n} drives the van # the van is driven by {n} # is at the wheel of the van; is the van driver; takes the van out
{n} answers the phone # the phone is answered by {n} # picks up when it rings; takes calls; talks to callers
{n} locks up at night # the doors are locked by {n} # closes the house; shuts the doors; turns the key at night
{n} opens up in the morning # the shutters are opened by {n} # is first in; unlocks in the morning; lets the others in at dawn
{n} cooks for the crew # the crew's meals are cooked by {n} # makes the food; prepares the meals; is the crew's cook
{n} pays the wages # the wages are paid by {n} # gives out the wages; hands the staff their money; is the paymaster
{n} trains the goalkeepers # the goalkeepers are trained by {n} # coaches the goalkeepers; works with the goalkeepers; is the goalkeeping coach
{n} tunes the piano # the piano is tuned by {n} # puts the piano in tune; is the piano tuner; makes the piano sound right
{n} prints the posters # the posters are printed by {n} # makes the posters; are the posters from; is the printer of the posters
{n} sells the tickets # the tickets are sold by {n} # is the ticket seller; is at the ticket desk; takes money for tickets
{n} feeds the donkeys # the donkeys are fed by {n} # gives the donkeys hay; looks after the donkeys; sees that the donkeys eat
{n} picks the plums # the plums are picked by {n} # harvests the plums; gathers the fruit; brings in the plums
{n} mows the lawn # the lawn is mown by {n} # cuts the grass; looks after the lawn; keeps the grass short
{n} translates the letters # the letters are translated by {n} # puts the letters into English; is the translator; renders the letters
{n} edits the village paper # the village paper is edited by {n} # is the editor; is in charge of the paper; decides what the paper prints
{n} leads the walks # the walks are led by {n} # goes in front on walks; is the walk leader; takes people on walks
{n} supplies the wood # the wood is supplied by {n} # provides wood; is the wood from; brings firewood
{n} rents out boats # boats are rented out by {n} # lends boats for money; has boats for hire; can I hire a boat from
{n} buys the paint # the paint is bought by {n} # gets the paint; purchases paint; pays for the paint
{n} washes the shirts # the shirts are washed by {n} # does the laundry; cleans the shirts; is the washer
{n} guards the gate # the gate is guarded by {n} # stands at the gate; watches the gate; is the gatekeeper
{n} designed the stage # the stage was designed by {n} # drew the stage; is the stage from; planned the stage
{n} founded the club # the club was founded by {n} # started the club; set up the club; is the founder
{n} wrote the song # the song was written by {n} # composed the song; is the author of the song; made up the song
{n} chairs the committee # the committee is chaired by {n} # heads the committee; presides; is the chairperson
{n} keeps the bees # the bees are kept by {n} # is the beekeeper; has bees; makes the honey
{n} mends the nets # the nets are mended by {n} # repairs the nets; fixes the nets; sews up the nets
{n} sorts the post # the post is sorted by {n} # puts the letters in order; handles the mail; sees to the letters
{n} checks the tickets # the tickets are checked by {n} # looks at tickets; inspects tickets; is the inspector
{n} minds the children # the children are minded by {n} # looks after the children; babysits; watches the kids
{n} lends the tools # the tools are lent by {n} # gives out tools; can I borrow tools from; is the tool lender
{n} borrowed the drill # the drill was borrowed by {n} # took the drill; has the drill; holds the drill at the moment
{n} won the raffle # the raffle was won by {n} # had the lucky ticket; is the winner; got the raffle prize
{n} lost the race # the race was lost by {n} # came last; was beaten; is the loser
{n} broke the window # the window was broken by {n} # smashed the window; is to blame for the window; damaged the window
{n} found the ring # the ring was found by {n} # is the finder of the ring; discovered the ring; picked up the ring
{n} hid the letters # the letters were hidden by {n} # put the letters out of sight; concealed the letters; tucked the letters away
{n} ordered the carpet # the carpet was ordered by {n} # wanted a carpet; asked for the carpet; placed the order for the carpet
{n} cancelled the trip # the trip was cancelled by {n} # called off the trip; decided against the trip; put an end to the trip
{n} plays the organ # the organ is played by {n} # is the organist; sits at the organ; makes music on the organ
{n} rings the bells # the bells are rung by {n} # is the bell ringer; sounds the bells; makes the bells ring
{n} shears the sheep # the sheep are shorn by {n} # cuts the wool; is the shearer; takes the fleece off
{n} milks the cows # the cows are milked by {n} # does the milking; gets the milk; milks
{n} grinds the coffee # the coffee is ground by {n} # turns beans into powder; mills the coffee; makes ground coffee
{n} makes the candles # the candles are made by {n} # produces candles; is the candle maker; are the candles from
{n} collects the rents # the rents are collected by {n} # takes in the rent; gets the rent money; comes for the rent
{n} tests the brakes # the brakes are tested by {n} # tries out the brakes; makes sure the brakes work; examines the brakes
{n} organises the fair # the fair is organised by {n} # sets up the fair; is the organiser; plans the fair
{n} signs the cheques # the cheques are signed by {n} # puts a name on the cheques; is the signatory; writes a signature
{n} treats the horses # the horses are treated by {n} # is the horse doctor; heals the horses; is the vet
{n} climbs the mast # the mast is climbed by {n} # goes up the mast; goes aloft; gets to the top
{n} takes the photographs # the photographs are taken by {n} # is the photographer; is behind the camera; shoots the pictures
{n} lights the stove # the stove is lit by {n} # makes the fire; gets the stove going; starts the fire
{n} counts the votes # the votes are counted by {n} # adds up the votes; tallies; is the counter
{n} heads the kitchen # the kitchen is headed by {n} # is the chef; leads the kitchen; is the top person in the kitchen
{n} hired the band # the band was hired by {n} # booked the musicians; got the band; brought in the band
{n} built the bridge # the bridge was built by {n} # put up the bridge; is the builder; erected the bridge
{n} sharpens the knives # the knives are sharpened by {n} # makes blades sharp; grinds knives; sees to the blades
{n} bakes on Sundays # the Sunday bread is baked by {n} # is the Sunday baker; makes the loaves; works the oven
{n} stores the chairs # the chairs are stored by {n} # has the chairs at home; keeps the chairs; are the chairs with
{n} writes the reports # the reports are written by {n} # is the author of the reports; puts it on paper; drafts the reports
{n} books the hotels # the hotels are booked by {n} # reserves the rooms; arranges beds; sees to the hotel
{n} maintains the website # the website is maintained by {n} # is the webmaster; looks after the site; keeps the web page up to date
{n} grew the roses # the roses were grown by {n} # is the rose grower; raised the roses; are the roses from
{n} painted the ceiling # the ceiling was painted by {n} # is the ceiling's painter; put colour on the ceiling; coated the ceiling
{n} carries the flag # the flag is carried by {n} # is the flag bearer; walks with the flag; holds the flag
{n} stocks the shelves # the shelves are stocked by {n} # fills the shelves; puts the goods out; loads the racks
{n} recommended the doctor # the doctor was recommended by {n} # gave the tip; spoke well of the doctor; suggested the doctor
{n} paid the fine # the fine was paid by {n} # settled the fine; had to pay; gave money for the fine
"""

# roles of people, separated by ` # `: the role, questions after `Who` in other words
_ROLES = """\
treasurer # looks after the funds; handles the finances; watches over the accounts
secretary # writes the letters; does the paperwork; takes the minutes
president # is at the top; presides; leads it all
lifeguard # watches the swimmers; saves people from the water
caretaker # looks after the building; changes the bulbs
janitor # keeps the place clean; sweeps the halls
chef # is in charge of the kitchen; makes the food; cooks
sommelier # pours the wine; knows about wine
waiter # serves the tables; brings the food
porter # carries the bags; takes the luggage
receptionist # greets the guests; is at the front desk
bookkeeper # does the books; keeps the accounts
librarian # looks after the books; lends the books
gardener # tends the flowers; looks after the garden; cuts the hedges
driver # is at the wheel; drives
skipper # steers the boat; commands the boat
navigator # reads the map; finds the way
mechanic # repairs the engines; fixes the cars
umpire # decides in a dispute; judges the play
coach # trains the players; prepares the team
physiotherapist # treats the sore muscles; massages the players
nurse # cares for the sick; gives the medicine
surgeon # operates; does the operations
midwife # helps at births; delivers the babies
pharmacist # hands out the pills; sells the medicine
vet # treats the animals; heals the animals
shepherd # minds the sheep; walks with the flock
beekeeper # looks after the hives; makes the honey
forester # looks after the trees; watches over the wood
ranger # protects the park; patrols the park
conductor # leads the orchestra; waves the baton
organist # plays at the service; sits at the organ
drummer # plays the drums; keeps the beat
singer # does the vocals; sings
bassist # plays the bass
playwright # wrote the play; thought up the play
choreographer # invents the dances; plans the steps
photographer # takes the pictures; is behind the camera
costume maker # sews the clothes; makes the outfits
stagehand # moves the scenery; shifts the sets
usher # shows people to their seats
editor # decides what is printed; corrects the texts
reporter # writes the articles; covers the news
translator # puts it into another language
interpreter # speaks for the guests
postmaster # is in charge of the mail
courier # delivers the parcels; brings the packages
baker # makes the rolls; bakes
butcher # sells the meat; cuts the meat
florist # sells the flowers; ties the bouquets
tailor # sews the suits; makes the clothes
cobbler # mends the shoes; repairs the soles
carpenter # works with wood; made the shelves
plumber # fixes the pipes; unblocks the drains
electrician # sees to the wiring; repairs the cables
roofer # mends the tiles; repairs the roof
glazier # puts in the windows; works with glass
architect # drew the plans; designed the house
surveyor # measures the land
notary # certifies the papers; stamps the deeds
judge # passes the sentence; decides the case
prosecutor # brings the charges; accuses
mayor # governs the town; heads the town
teacher # gives the lessons; instructs the pupils
headmistress # runs the school; heads the school
tutor # helps with the homework
pilot # flies the plane; sits in the cockpit
founder # started it; set it up
owner # does it belong to; has the deeds
tenant # lives there; pays the rent
landlord # gets the rent; lets the rooms
deputy # stands in; acts for the boss
intern # is there to learn; is new and unpaid
auditor # checks the accounts
recruiter # hires the staff; finds new people
tester # tries things out; looks for faults
programmer # writes the code; codes
designer # makes the drawings; gives it its look
salesman # sells; talks to buyers
buyer # purchases the goods; orders the stock
night porter # is there at night; opens after midnight
watchman # guards the place; makes the rounds
scorer # notes the points; writes down the score
timekeeper # holds the stopwatch; measures the time
host # invites; has people in
best man # stands by the groom
godmother # held the baby
chairwoman # leads the meetings; has the chair
"""

# sentences that fit into any text about people, with questions
_EXTRAS = """\
[Doors open|We open|They open] at {t1} and [close|shut] at {t2}.
t1: when does it open?; opening time?; from when are they open?; when do they let people in?
t2: when does it close?; closing time?; until when are they open?; when do they shut?

[Grown-ups|Adults] pay {k1}, [children|kids] {k2}.
k1: what does an adult pay?; price for grown-ups?; adult price?
k2: what do children pay?; price for kids?; child price?

[The address is|You find us at|It lies on|Go to] {s1}.
s1: address?; on which street is it?; where do I find it?; where exactly is it?

[Set up|Founded|Begun] in {y1}, [rebuilt|enlarged] in {y2}.
y1: when was it founded?; founding year?; when did it start?
y2: when was it changed?; year of the works?; when was it rebuilt?

For questions, [ring|call|dial] {x1} or write to {m1}.
x1: phone?; which number can I ring?; telephone number?
m1: e-mail?; where can I write?; mail address?

[Parking|The car park] is {k3} [a day|per day|daily].
k3: what does parking cost?; parking fee?; how much to leave my car?

[The code for the gate|The gate code] is {c1}.
c1: what opens the gate?; gate code?; what do I type at the gate?

It is [shut|closed] on {d1}.
d1: which day is it closed?; day off?; when are they not open?

The [big day|feast|festival] is {e1}.
e1: when is the festivity?; date of the big day?; which date is it?

[Staff|People employed|On the payroll]: {i1}. [Volunteers|Unpaid helpers]: {i2}.
i1: how many are employed?; size of the staff?; number of paid people?
i2: how many helpers are there without pay?; number of volunteers?; how many work for free?

The walls are {o1}, the roof is {o2}.
o1: colour of the walls?
o2: colour of the roof?; what colour is the roof?

The dish of the day is {g1}, [with|and there is] {b1} to drink.
g1: what is there to eat?; dish of the day?; what can I eat today?
b1: what is there to drink?; drink of the day?; which drink goes with it?

[Trains|Buses|Trams] from {p1} [arrive|get in] at {t3}.
p1: from where do they come?; which town do they come from?
t3: when do they get in?; arrival from {p1}?; when does one arrive from {p1}?

[A|One] {v1} was left behind, [ask|see] {n9} [about it|if it is yours].
v1: what was left behind?; which thing is without an owner?; what was forgotten?
n9: who has the lost thing?; whom do I ask about the {v1}?; with whom is the {v1}?
"""
_INTROS = "[At|In] the [village|old|new|little|big] [hall|school|inn|harbour|market|farm|workshop|camp|theatre|station|chapel|café|lido|clinic|winery|brewery|stable|printing house|lighthouse|zoo|youth centre|sports club|nursery|allotment|hospice|archive]:;Who does what [here|with us|this year|on our team]:;News from {p9}.;[Rota|Duty list|Plan|Who is who], {d9}:;Our [team|people|helpers] [in short|at a glance].;Dear all, [a reminder|the new list|for the record].;The [co-op|guild|crew|band|household|company] in {p9} [is small|has grown|works like this].;Welcome to {l9}!;{l9}, {p9}.;[Minutes|Memo|Notes], {e9}.;From the [archive|papers|website] of {w9}:;;;"
_BETWEEN = (". ", ". ", ". ", ", ", "; ", " and ", ", while ", ", and ", ".\n", "\n", " - ")
_ROLE_TOLD = ("The {r} is {n}|{n} is the {r}|{n} works as the {r}|Our {r} is called {n}|As {r} we have {n}|{r}: {n}|{n}, {r}|{n} ({r})|{r} {n}|The post of {r} is held by {n}|{n} is employed as {r}|we have {n} as {r}|{n} acts as {r}|{n} serves as {r}|{r} = {n}|{n} - {r}|You will meet {n}, our {r}|The job of {r} went to {n}|{n} was made {r}|{n} became {r}").split("|")  # fmt: skip
_ROLE_ASKED = ("who is the {r}?|the {r}'s name?|what is the {r} called?|name the {r}|who works as {r}?|who's your {r}?|which of them is the {r}?|{r}?|who have they got as {r}?|who holds the post of {r}?|whom do they employ as {r}?|and the {r}?|I am looking for the {r}, who is it?|tell me the name of the {r}").split("|")  # fmt: skip
_LAYOUTS = (
    "{p}^^{q}", "{q}^^{p}", "{p} {q}", "{q} {p}", "{p}^[Q|Question]: {q}", "[Read this|Have a look|See below|Here you go]: {p}^^{q}", "{q}^---^{p}", "\"{p}\" {q}", "[fwd|FW|Forwarded]: {p}^^{q}", "[This was on the door|I found this note|They sent me this|It says here]: {p}^{q}",
    "[Can you tell me|Help me find out|I want to know], {q}^^{p}", "{p}^^[So|Now|Well then|Tell me], {q}", "[Text|Doc|Note]^{p}^[Ask|Query]^{q}", "> {p}^{q}", "<<{p}>>^{q}", "[One question about this|About this text]: {q}^{p}", "{p}^^^{q}", "[question|q]: {q}^[info|text]: {p}", "{p} // {q}", "[Short answer please|In a word|Just the answer]: {q}^^{p}", "[given|Given] {p}^[find|Find]: {q}", "```^{p}^```^{q}", "[My landlady|My boss|The school] writes: {p}^^{q}", "[[1]] {p}^^{q}",
)
# facts, separated by ` # `: topic and kind of value, statements, questions, answer
_FACTS = """\
name n # [Call me|Please call me|Do call me] {v}[, everyone does|].; [Hiya|Evening|Morning|Ey up], {v} speaking.; The name on my badge says {v}.; On paper I'm {v}.; I was christened {v}.; {v} at your service.; You've got {v} here.; I go by {v} online.; Signed, {v}; this is {v} btw; Put me down as {v}. # what's the name I gave you?; under what name did you put me down?; how do you address me?; who am I, according to you?; what should be on my name tag?; can you say my name?; what am I known as?; my own name?; which name goes with me? # Your name is {v}.
surname n # My [surname|last name|family name] is {v}.; It's [Mr|Ms|Mrs] {v}, if we're being formal.; We {v}s are a loud lot, it's my family name.; Last name {v}, if you need it.; The bell at my door says {v}, my surname. # my last name?; what's my surname?; what's my family called?; which family name is mine?; how do I sign, last name only? # Your surname is {v}.
nickname n # [At school|In the army|On the team] they nicknamed me {v}.; My nickname is {v}.; My mates shout {v} when they want me, it's a nickname.; I've had the nickname {v} since I was six. # what's my nickname?; what did they nickname me?; by what nickname am I called? # Your nickname is {v}.
home p # I've just [unpacked|settled] in {v}.; {v} is where I hang my hat.; I pay my taxes in {v}, that's home.; my flat's over in {v}; We've had a house in {v} for ages.; I live out in {v}[, it's quiet|].; {v} has been home since the divorce.; Based in {v} these days. # where's home for me?; where do I hang my hat?; in what town is my bed?; where am I based?; which place do I call home?; what town do I live in?; where would you find my house? # You live in {v}.
born p # I came into this world in {v}.; My birth certificate says {v}.; I was born in a hospital in {v}.; My mum had me in {v}.; {v} is my place of birth. # what's on my birth certificate as place?; where was I born?; in which town was I born?; my place of birth? # You were born in {v}.
job j # I'm on the books as a {v}.; I've been a {v} since I left school.; It says {v} on my business card.; I make my living as a {v}.; Retrained as a {v} last year.; My contract says {v}.; Work? I'm a {v}.; They took me on as a {v}. # what's on my business card?; how do I make a living?; what am I by trade?; what job do I have?; what line am I in?; what do I work as?; which profession is mine? # You work as a {v}.
firm w # {v} signs my pay slips.; I'm with {v} now.; My boss's boss runs {v}.; I clock in at {v}.; I'm on the payroll of {v}.; I joined {v} in spring.; My work mail ends in {v}, that's who I work for. # who signs my pay slips?; who employs me?; which company am I with?; what firm do I work for?; on whose payroll am I? # You work for {v}.
shift t # I clock on at {v}.; My working day begins at {v}.; They want me at my desk by {v}.; I have to be in by {v}. # when do I start work?; at what time must I be at my desk?; when do I clock on?; when does my working day begin? # You start at {v}.
pay k # I take home {v} a month.; My wage is {v}.; They pay me {v}.; I make {v} a month before tax.; On pay day I see {v}. # what do I earn?; how much is my wage?; what's my monthly income?; how much do they pay me? # You earn {v}.
rent k # The flat sets me back {v} a month.; My rent is {v}.; I hand my landlord {v} every month.; Rent's gone up to {v}.; {v} in rent, can you believe it? # what does my landlord get?; how much is my rent?; what's the rent I pay?; how much goes on the flat every month? # Your rent is {v}.
bill k # The [power|electricity] bill came to {v}.; I owe the electric company {v}.; Electricity was {v} this time.; They want {v} for the electricity. # how high was the electricity bill?; what do I owe for power?; what did electricity cost me? # Your electricity bill is {v}.
phonebill k # My mobile contract is {v} a month.; I'm paying {v} for the mobile.; The phone contract costs me {v}. # what's my phone contract?; what do I pay for the mobile?; how much is my mobile a month? # Your phone contract costs {v}.
savings k # I've put aside {v} so far.; My savings are {v}.; There's {v} in my savings account.; I managed to save {v}. # how much have I put aside?; what's in my savings account?; how much did I save up? # You have saved {v}.
debt k # I still owe the bank {v}.; My loan is down to {v}.; The bank lent me {v}.; I'm {v} in debt. # how much do I owe the bank?; how big is my loan?; what's my debt? # You owe {v}.
budget k # I can spend {v}[ at most| and no more|].; My limit is {v}.; {v} is as far as I can go.; I've got {v} to spend on this. # how much can I spend?; what's my limit?; how far can I go with money? # Your limit is {v}.
wifi c # The wifi here is {v}.; To get online at mine you type {v}.; Our router wants {v} as password.; wifi pw: {v}; The internet password's {v}. # how do guests get online at mine?; what's the internet password?; what does the router want?; wifi pw?; which password is the wifi on? # Your wifi password is {v}.
door c # To get in downstairs you punch in {v}.; {v} on the keypad lets you in.; The keypad at the front door takes {v}.; Front door code is {v}. # what do I punch in downstairs?; what's for the keypad?; how does one get past the front door?; front door, what code? # Your door code is {v}.
safe c # The safe opens on {v}.; I set the safe to {v}.; {v} for the safe, keep it quiet.; My safe's combination: {v} # what's the combination of the safe?; what opens the safe?; how do I get at the safe? # Your safe code is {v}.
bike c # The lock on my bike is {v}.; My bike lock: {v}; I set {v} on the bicycle lock. # what's the number of my bike lock?; how do I unlock my bicycle?; bike lock? # Your bike lock code is {v}.
locker i # They gave me locker {v} at the pool.; My stuff's in locker {v}.; Locker {v} is mine. # which locker is mine?; where's my stuff, what locker?; my locker's number? # Your locker is {v}.
booking c # The hotel confirmed, reference {v}.; My booking reference is {v}.; I booked, they gave me {v} as reference.; Booking ref {v}, save that. # what's my booking reference?; which reference did the hotel give?; booking ref?; under what reference did I book? # Your booking reference is {v}.
flight c # I'm flying on {v}.; My plane is {v}.; They rebooked me to flight {v}.; I'm on {v}, the early flight. # which flight am I on?; what's my plane?; what flight number should I look for?; flight no.? # Your flight is {v}.
seat i # I sit in row {v}.; My row is {v}.; I've been put in row {v}. # which row am I in?; in what row do I sit?; my row? # You sit in row {v}.
hotel l # We're staying at the {v}.; I got a room at the {v}.; Our hotel is the {v}.; Put us up at the {v}. # where are we staying?; which hotel is it?; what's our hotel called?; where did I get a room? # Your hotel is the {v}.
room h # I'm in room {v}.; They gave me room {v} at reception.; My hotel room is {v}. # what room am I in?; which room did they give me?; my room number? # Your room is {v}.
order c # I'm waiting for order {v}.; My order number's {v}.; I ordered, it's number {v}.; Parcel on the way, order {v}. # what's the number of my order?; which order am I waiting for?; order no.? # Your order number is {v}.
member c # My club card says {v}.; I'm member {v}.; Membership no. {v}.; I joined as member {v}. # what's my membership number?; what does my club card say?; which member am I? # Your membership number is {v}.
policy c # The insurance gave me policy {v}.; My policy number is {v}.; I'm insured under {v}. # under what number am I insured?; insurance policy number?; which policy is mine? # Your policy number is {v}.
passport c # My passport is number {v}.; Passport no: {v}; The number in my passport is {v}. # what's in my passport as number?; passport no?; which number does my passport have? # Your passport number is {v}.
plate z # My car's registration is {v}.; Number plate {v}, that's mine.; You'll know my car by the plate {v}. # what's on my number plate?; registration of my car?; my plate?; by which plate do you know my car? # Your plate is {v}.
car l # I run around in a {v}.; I've leased a {v}.; The car outside, the {v}, is mine.; I traded the old car for a {v}.; My wheels? A {v}. # what car do I run around in?; what did I lease?; make of my car?; which car is outside?; what are my wheels? # You drive a {v}.
caryear y # My car was built in {v}.; The car's from {v}, still goes.; It's a {v} car I have. # how old is my car, what year?; from which year is my car?; year of the car? # Your car is from {v}.
phone x # Text me on {v}.; My mobile: {v}; You can get hold of me on {v}.; {v} reaches me day and night.; New SIM, so it's {v} now. # how do people get hold of me?; on what number do you text me?; what's my mobile?; digits of my mobile?; what do I give as phone number? # Your phone number is {v}.
mail m # Mail me at {v}.; My e-mail is {v}.; Send the papers to {v}.; {v} is where I get mail online. # what's my e-mail?; where do you send the papers?; my mail address? # Your e-mail address is {v}.
street s # Post goes to {v}.; I'm at {v}, ring twice.; We bought a place on {v}.; The postman knows me at {v}. # where does my post go?; what address am I at?; which street is our place on?; where does the postman know me? # Your address is {v}.
birthday e # I was born on {v}.; My birthday's {v}.; {v} is my big day, birthday I mean.; We light the candles on {v}, my birthday. # when's my birthday?; when do we light the candles?; on what date was I born?; when do I get older? # Your birthday is {v}.
age i # I'll never see {v} again, that's my age.; I'm {v} now.; I'm all of {v} years old.; {v} years young, me.; Just hit {v}.; Not bad for a {v}-year-old, am I? # how old did I say I am?; what's my age?; how many years have I got behind me?; how old? me, I mean # You are {v} years old.
height h # I'm {v} [cm|centimetres] tall.; I measure {v} cm.; My height? {v} cm. # how tall am I?; what do I measure?; what's my height? # You are {v} cm tall.
weight i # I weigh {v} kilos.; The scales say {v} kilos.; I'm down to {v} kg. # what do I weigh?; what do the scales say?; how heavy am I? # You weigh {v} kilos.
shoe i # I take a {v} in shoes.; My feet are a {v}.; Shoes have to be {v} for me. # what shoe size am I?; what size are my feet?; which size do my shoes have to be? # Your shoe size is {v}.
allergy r # {v} [brings me out in a rash|sends me to hospital|swells my lips].; One bite of {v} and I'm in trouble, allergy.; Please note an allergy: {v}.; I carry a pen because of {v}, I'm allergic.; No {v} on my plate, doctor's orders, allergic.; I come up in spots from {v}. # what is it I am allergic to?; what brings me out in a rash?; which food must be kept off my plate?; what's my allergy?; what sends me to hospital?; what should I not be given? # You are allergic to {v}.
diet g # I gave up {v} for Lent.; I've stopped eating {v}.; I swore off {v}. # what did I give up?; what have I stopped eating?; what did I swear off? # You gave up {v}.
food g # Nothing beats {v}, my favourite food.; I could eat {v} every day, I love it.; {v} is my favourite dish.; Give me {v} and I'm happy, best food there is. # what could I eat every day?; what's my favourite dish?; which food do I love?; what meal makes me happy? # Your favourite food is {v}.
drink b # I can't start the day without {v}.; My drink is {v}.; I always order {v} at the bar.; Mine's a {v}, cheers. # what's my drink?; what do I always order at the bar?; what do I need to start the day? # Your drink is {v}.
colour o # I'd paint the world {v}, favourite colour.; {v} suits me, it's the colour I like most.; My favourite shade is {v}.; If it comes in {v} I buy it, best colour.; Colour-wise I'm all for {v}. # which colour do I like most?; what shade is my favourite?; in what colour do I buy things?; colour I like? # Your favourite colour is {v}.
number i # My lucky number is {v}.; I always bet on {v}, my lucky number.; {v} brings me luck. # which number brings me luck?; what do I always bet on?; lucky number? # Your lucky number is {v}.
band l # I've got every record by {v}, best band ever.; My favourite band is {v}.; I saw {v} live, the band I love. # which band do I love?; best band ever, for me?; whose records have I got? # Your favourite band is {v}.
book l # I'm halfway through {v}.; On my bedside table there's {v}.; Our book club picked {v}, I'm reading it. # what am I reading?; which book's on my bedside table?; what did the book club pick? # You are reading {v}.
film l # I could watch {v} a hundred times, best film.; The film I love is {v}.; {v} is my favourite movie. # what film could I watch a hundred times?; my favourite movie?; which film do I love? # Your favourite film is {v}.
team w # I've a season ticket for {v}.; I shout for {v} on Saturdays.; {v} till I die, my team. # whom do I shout for?; what's my team?; for which club have I a season ticket? # Your team is {v}.
hobby u # I spend my evenings on {v}.; Mad about {v}, me.; My thing is {v}.; I've taken to {v} lately as a hobby.; When I've a free hour it's {v}. # what do I get up to in a free hour?; what am I mad about?; what's my hobby?; how do I spend my evenings?; which pastime did I take to? # Your hobby is {v}.
language q # I'm brushing up my {v}.; I'm taking an evening course in {v}.; I'm learning {v}, slowly. # which language am I learning?; what's my evening course in?; what am I brushing up? # You are learning {v}.
tongue q # We speak {v} at the dinner table.; {v} is my mother tongue.; My first language was {v}. # what's my first language?; what do we speak at the dinner table?; my mother tongue? # Your first language is {v}.
school l # I went to school at {v}.; I'm an old pupil of {v}.; My school was called {v}. # where did I go to school?; of which school am I an old pupil?; what was my school called? # Your school was {v}.
uni p # I studied in {v}.; I took my degree in {v}.; My university town was {v}. # where did I take my degree?; where did I study?; my university town? # You studied in {v}.
teacher n # I had {v} as a teacher in first grade.; My first teacher was {v}.; {v} taught me to read. # who taught me to read?; who was my first teacher?; whom did I have in first grade? # Your first teacher was {v}.
doctor f # My GP is {v}.; I'm under {v} at the surgery.; The doctor I go to is {v}.; {v} looks after my health. # who's my GP?; which doctor do I go to?; who looks after my health?; name of my doctor? # Your doctor is {v}.
dentist f # {v} does my teeth.; I'm a patient of {v}, the dentist.; My dentist is {v}. # who does my teeth?; who is my dentist?; whose patient am I for teeth? # Your dentist is {v}.
toothday d # I've got the dentist on {v}.; Teeth on {v}, wish me luck.; The dentist can fit me in on {v}. # when is my dental check?; which day are my teeth looked at?; when can the dentist fit me in? # It is on {v}.
hairday d # I'm having my hair cut on {v}.; Hairdresser on {v}.; I booked a haircut for {v}. # when do I get my hair done?; what day is the haircut?; when am I at the hairdresser's? # It is on {v}.
lawyer f # I've hired {v} as my lawyer.; {v} will speak for me in court.; My solicitor is {v}. # who's my solicitor?; who will speak for me in court?; whom did I hire as a lawyer? # Your lawyer is {v}.
landlord f # I rent from {v}.; My landlord is {v}.; The flat belongs to {v}. # who do I rent from?; who's my landlord?; to whom does the flat belong? # Your landlord is {v}.
boss f # I answer to {v} at work.; My boss is {v}.; {v} is my superior.; {v} tells me what to do at the office. # who's my superior?; whom do I answer to?; who is in charge of me?; boss's name? # Your boss is {v}.
mate n # I share a flat with {v}.; {v} and I are flatmates.; My flatmate is {v}. # whom do I share a flat with?; who's my flatmate?; who has the other room? # Your flatmate is {v}.
wife n # I'm married to {v}.; {v} and I got hitched last May.; I said yes to {v} and we wed. # whom did I wed?; to whom am I married?; my spouse's name? # You are married to {v}.
date n # I'm going out with {v}.; {v} and I are dating.; My new flame is {v}. # who's my new flame?; with whom am I going out?; whom am I dating? # You are dating {v}.
friend n # My best mate is {v}.; I've known {v} since nursery, my closest friend.; {v} is my best friend. # who's my best mate?; who is closest to me as a friend?; which friend have I known since nursery? # Your best friend is {v}.
dog a # We've a new puppy, {v}.; I take {v} out twice a day, he's a spaniel, my dog.; My dog is {v}.; {v} barks at the postman, silly dog of mine.; Our dog answers to {v}. # what do I shout when the dog runs off?; dog's name?; what's the dog of mine called?; whom do I take out twice a day? # Your dog is called {v}.
cat a # {v} has had kittens again, my cat.; My cat is {v}.; The cat, {v}, is on my lap.; We named the cat {v}. # what's the cat's name?; who's on my lap?; name of the cat I have?; what did we name the cat? # Your cat is called {v}.
fish a # I won a goldfish and called it {v}.; My goldfish is {v}. # what did I call the goldfish?; the goldfish's name?; who swims in my bowl? # Your goldfish is called {v}.
horse a # I ride {v}, my mare.; {v} is the horse I own.; My horse is called {v}. # whom do I ride?; what's my mare called?; my horse's name? # Your horse is called {v}.
kids i # I've {v} grandchildren.; {v} grandchildren and counting. # how many grandchildren have I?; number of grandchildren? # You have {v} grandchildren.
siblings i # I'm one of {v} children at home.; We were {v} kids at home. # how many kids were we at home?; of how many children am I one? # You were {v} children.
floor i # I live on floor {v}.; It's {v} flights up to mine.; Lift to {v}, then left, that's me. # on which floor do I live?; how many flights up?; what floor is mine? # You live on floor {v}.
trip p # I'm off to {v} [soon|in summer|with the kids].; We booked two weeks in {v}.; Holiday's sorted: {v}.; My next trip is to {v}.; Bags packed for {v}. # where am I off to?; what's the holiday destination?; where is the holiday booked?; where's my next trip to?; for which place are the bags packed? # You are going to {v}.
trip2 p # We spent last summer in {v}.; Last year's holiday was in {v}.; We got back from {v} last year, lovely. # where was last year's holiday?; where did I spend last summer?; where were we last year? # You were in {v}.
depart e # We set off on {v}.; The holiday begins on {v}.; My trip starts {v}. # when do we set off?; what day does my trip start?; when does the holiday begin? # It is on {v}.
nights i # We're away for {v} nights.; I booked {v} nights.; {v} nights is all I could get off. # how many nights am I away?; for how many nights did I book?; how long, in nights? # It is {v} nights.
train t # My train goes at {v}.; I must catch the {v} train.; The train I want is the {v}. # when does my train go?; which train must I catch?; what time's my train? # Your train goes at {v}.
alarm t # Wake-up's at {v}.; I drag myself out of bed at {v}.; The clock rings at {v}, poor me. # when do I drag myself out of bed?; when does the clock ring?; what time's my wake-up? # You get up at {v}.
bed t # Lights out at {v} for me.; I'm in bed by {v}.; I turn in at {v}. # when do I turn in?; by when am I in bed?; when are my lights out? # You go to bed at {v}.
interview d # They're seeing me for the job on {v}.; Job interview {v}.; My interview's on {v}. # when do they see me for the job?; what day's the interview?; interview when? # It is on {v}.
exam e # I sit my finals on {v}.; My exam is {v}.; The big test is on {v}. # when do I sit my finals?; when's my exam?; what date is the big test? # It is on {v}.
wedding e # We tie the knot on {v}.; Our wedding is on {v}.; The church is booked for {v}, our wedding. # when do we tie the knot?; what's our wedding day?; for when is the church booked? # It is on {v}.
move e # The removal van comes on {v}.; I move house on {v}.; I get the keys to the new flat on {v}. # when does the removal van come?; when do I move house?; when do I get the keys? # It is on {v}.
due e # The baby's due {v}.; We're expecting on {v}. # when is the baby due?; when are we expecting?; due date of the baby? # It is on {v}.
deadline e # I have to hand it in by {v}.; The report's due {v}.; My deadline is {v}. # by when must I hand it in?; when's the report due?; what deadline have I? # It is on {v}.
rubbish d # The bins go out on {v}.; {v} is bin day with us.; Rubbish is fetched on {v}. # when do the bins go out?; which day is rubbish day?; when is the rubbish fetched? # It is on {v}.
gym d # I lift weights every {v}.; {v} is my gym day.; You'll find me at the gym on {v}. # when do I lift weights?; which day am I at the gym?; gym day? # It is on {v}.
off d # I don't work on {v}.; {v} is my free day.; They gave me {v} off. # which day don't I work?; what's my free day?; when am I off? # It is on {v}.
spot v # I keep my spare key in the {v}.; The spare key's hidden in the {v}.; Spare key? In the {v}. # where's my spare key?; where did I hide the spare key?; what's the spare key in? # Your spare key is in the {v}.
lost v # I've mislaid my {v}.; My {v} has gone missing.; Somebody pinched my {v}. # what have I mislaid?; what has gone missing?; what did somebody pinch? # You lost your {v}.
bought v # I treated myself to a {v}.; I came home with a new {v}.; I splashed out on a {v}. # what did I treat myself to?; what did I come home with?; on what did I splash out? # You bought a {v}.
sell v # I'm selling my {v}.; My {v} is up for sale.; I put my {v} online to sell it. # what am I selling?; what's up for sale?; what did I put online? # You are selling your {v}.
wish v # For Christmas I'd love a {v}.; I'm hoping for a {v} for Christmas.; Santa, bring me a {v}! # what would I love for Christmas?; what should Santa bring?; which present do I hope for? # You wish for a {v}.
gift v # I'm giving my mum a {v}.; Mum gets a {v} from me.; I wrapped a {v} for my mum. # what does my mum get?; what did I wrap for my mum?; what's the present for mum? # Your mum gets a {v}.
fix v # The {v} broke down and needs mending.; I have to get the {v} repaired.; My {v} is at the repair shop. # what needs mending?; what is at the repair shop?; what do I have to get repaired? # Your {v} needs repair.
lent v # I lent my neighbour the {v}.; The neighbour still has my {v}.; My neighbour borrowed the {v}. # what did the neighbour borrow?; what did I lend next door?; what has my neighbour still got? # Your neighbour has your {v}.
fear v # I'm terrified of a {v}.; A {v} scares me stiff.; I scream when I see a {v}. # what scares me stiff?; what makes me scream?; what am I terrified of? # You are afraid of a {v}.
project l # At work I'm on {v}, a new project.; My project is called {v}.; They gave me {v} to manage, a project. # what's my project called?; which project am I on?; what did they give me to manage? # Your project is {v}.
team2 i # I manage {v} people.; There are {v} of us on my team.; My team has {v} heads. # how many are on my team?; how many people do I manage?; size of my team? # Your team has {v} people.
desk i # I sit at desk {v}.; My desk is number {v}.; You find me at desk {v}. # which desk is mine?; at what desk do I sit?; my desk? # Your desk is {v}.
bus i # I take the {v} bus to town.; Bus {v} stops at my door.; I get about on bus {v}. # which bus do I take?; what bus stops at my door?; my bus line? # Your bus is number {v}.
park i # I left the car on deck {v}.; The car's in bay {v}.; We parked in bay {v}. # where did I leave the car?; which bay is the car in?; where's my car, what bay? # Your car is in bay {v}.
gate c # We board at gate {v}.; My gate is {v}.; They changed it to gate {v}. # which gate do we board at?; what's my gate?; gate? # Your gate is {v}.
bank w # I bank with {v}.; My account's at {v}.; My money is at {v}. # who do I bank with?; where's my account?; where is my money? # Your bank is {v}.
gp2 t # The doctor can see me at {v}.; Doctor's at {v}.; I'm at the doctor's at {v}. # at what time can the doctor see me?; what time am I at the doctor's?; doctor's, what time? # It is at {v}.
dinner t # We eat at {v} tonight.; The table's booked for {v}.; Supper is at {v}. # for what time is the table?; when do we eat?; when's supper? # It is at {v}.
guests i # I'm expecting {v} guests.; There'll be {v} of us at the party.; I invited {v} people. # how many guests do I expect?; how many did I invite?; how many will be at the party? # You expect {v} guests.
theme v # The party theme is {v}.; We're doing a {v} party. # what's the theme of the party?; which theme did I choose? # The theme is {v}.
street2 s # I grew up on {v}.; As a kid I lived on {v}.; My childhood home was on {v}. # on which street did I grow up?; where was my childhood home?; street of my childhood? # You grew up on {v}.
office s # The office is at {v}.; I work out of {v}.; We've moved the office to {v}. # where's my office?; what's the office address?; where do I work out of? # Your office is at {v}.
gymcode c # The gym door takes {v}.; To get in the gym: {v} # what does the gym door take?; how do I get in the gym?; code of the gym? # Your gym code is {v}.
voucher c # I've a voucher, {v}.; My voucher code is {v}.; The discount code I got is {v}. # what's my voucher?; which discount code did I get?; voucher code? # Your voucher code is {v}.
instrument inst # I'm learning the {v}.; I play the {v} in a band.; I practise the {v} every night. # what instrument do I play?; what do I practise every night?; what do I play in the band? # You play the {v}.
ill ill # I've been diagnosed with {v}.; I'm in bed with {v}.; The doctor found {v}. # what have I been diagnosed with?; what did the doctor find?; why am I in bed? # You have {v}.
sport sport # I do {v} twice a week.; I've signed up for {v}.; I compete in {v}. # which sport do I do?; what did I sign up for?; in what do I compete? # Your sport is {v}.
size size # I take a size {v} in coats.; Coats fit me in {v}.; My coat has to be {v}. # what size coat do I take?; in which size do coats fit me?; coat size? # Your coat size is {v}.
steps h # I walk {v} steps a day.; My step counter says {v}. # how many steps do I walk?; what does my step counter say? # You walk {v} steps.
score h # I scored {v} at bowling.; My best bowling score is {v}. # what's my best at bowling?; how much did I score at bowling?; bowling score? # Your bowling score is {v}.
parcel d # My parcel comes on {v}.; They deliver my parcel {v}.; The courier's due with my parcel on {v}. # when does my parcel come?; what day is the courier due?; when do they deliver? # It is on {v}.
visit d # My in-laws are coming on {v}.; The in-laws visit on {v}. # when do my in-laws come?; which day do the in-laws visit? # It is on {v}.
pin h # My PIN is {v}.; The card's PIN: {v}; I set {v} as PIN. # what's my PIN?; which digits for the card?; PIN? # Your PIN is {v}.
"""
# facts about relatives: {r} is the relative
_KIN = "sister,brother,mum,dad,mother,father,aunt,uncle,cousin,son,daughter,niece,nephew,grandmother,grandfather,granny,grandad,stepdad,stepmum,godmother,godson,twin,mother-in-law,brother-in-law,grandson,granddaughter,half-sister,fiancé,ex,colleague,tutor,pen pal,husband,wife,partner,girlfriend,boyfriend,classmate,teammate,goddaughter,little brother,big sister,carer,babysitter,old teacher".split(",")  # fmt: skip
_KIN_FACTS = """\
n # My {r} is {v}[, lovely person|].; I've got a {r}, {v}.; There's my {r}, {v}.; {v} is my {r}.; My {r}'s called {v}.; You should meet {v}, my {r}.; My {r} ({v}) is [staying|visiting|calling].; The name of my {r} is {v}.; I'm having lunch with my {r} {v}. # who's my {r}?; what's my {r} called?; my {r}'s name?; which name does my {r} have?; name of my {r}?; what do I call my {r}?; the {r} I have, what's the name? # Your {r} is {v}.
p # My {r} lives in {v}.; My {r} moved to {v}.; My {r} has a flat in {v}.; {v} is where my {r} lives.; You'll find my {r} in {v}. # where does my {r} live?; in which town is my {r}?; where did my {r} move?; where's my {r}'s flat? # Your {r} lives in {v}.
j # My {r} is a {v}.; My {r} works as a {v}.; My {r} trained as a {v}.; My {r} earns money as a {v}. # what does my {r} do for work?; what job does my {r} have?; my {r}'s trade?; what's my {r} by profession? # Your {r} works as a {v}.
i # My {r} is {v}[ years old|].; My {r} just turned {v}.; My {r}'s {v} now. # how old is my {r}?; my {r}'s age?; what age did my {r} turn? # Your {r} is {v} years old.
e # My {r}'s birthday is {v}.; My {r} was born on {v}.; I must call my {r} on {v}, birthday! # when's my {r}'s birthday?; when was my {r} born?; on what date do I wish my {r} a happy birthday? # Your {r}'s birthday is {v}.
l # My {r} drives a {v}.; My {r} got a {v}, a flashy car.; My {r}'s car is a {v}. # what does my {r} drive?; my {r}'s car?; which car has my {r} got? # Your {r} drives a {v}.
r # My {r} can't have {v}, allergic.; My {r} is allergic to {v}.; Keep {v} away from my {r}, allergy. # what is my {r} allergic to?; my {r}'s allergy?; what must my {r} not have? # Your {r} is allergic to {v}.
x # My {r}'s number is {v}.; You can ring my {r} on {v}.; To reach my {r} dial {v}. # what's my {r}'s number?; how do I ring my {r}?; which number reaches my {r}? # Your {r}'s number is {v}.
o # My {r}'s favourite colour is {v}.; My {r} only wears {v}.; My {r} loves the colour {v}. # what colour does my {r} like?; which colour does my {r} wear?; my {r}'s colour? # Your {r} likes {v}.
u # My {r} is into {v}.; My {r}'s hobby is {v}.; My {r} spends weekends on {v}. # what's my {r}'s hobby?; what is my {r} into?; what does my {r} do on weekends? # Your {r}'s hobby is {v}.
w # My {r} works for {v}.; My {r} has a job at {v}.; {v} employs my {r}. # who employs my {r}?; which firm does my {r} work for?; where has my {r} got a job? # Your {r} works for {v}.
d # My {r} is coming on {v}.; My {r} visits on {v}.; On {v} I'm seeing my {r}. # when is my {r} coming?; which day does my {r} visit?; when am I seeing my {r}? # It is on {v}.
q # My {r} speaks {v}.; My {r} only talks {v}. # which language does my {r} speak?; what does my {r} speak? # Your {r} speaks {v}.
a # My {r} has a dog called {v}.; My {r}'s dog is {v}. # what's my {r}'s dog called?; name of the dog my {r} has? # Your {r}'s dog is called {v}.
"""
_CHANGED = ("Correction: ", "Wait, no, that's changed. ", "Oh wait, not any more. ", "Update: ", "I was wrong before. ", "Sorry, I mixed that up. ", "Scrap what I said. ", "That's out of date. ", "New info: ", "It's different now. ", "Edit: ", "I misspoke earlier. ", "There's been a change. ", "I take that back. ", "Actually, no. ", "Strike that. ", "Things have moved on. ", "Forget what I told you. ", "Small change: ")  # fmt: skip
_LEAD = "So |Well |Oh and |And |Also, |Plus, |Right so |Anyway, |Fyi: |Btw |Quick thing: |Before I go on: |You should know: |Since you ask: |Fun fact: |Between us: |One more: |A bit about me: |About me: |For your notes: |Listen: |Another thing: |P.S. |Let me tell you: |Guess what, |Not that it matters, but |Hello! |Hi there. |Evening! |Good day. ".split("|")  # fmt: skip
_TAIL = " Don't forget.| Remember that.| Keep that in mind.| Got it?| Jot it down.| Just saying.| That's the truth.| OK?| Haha.| Anyway.| More later.| Cheers.| :-)| It's been a long day.| Nothing special.| Write it down for me.| Ta.| Long story.".split("|")  # fmt: skip
_ASK = "Quick check: |Tell me, |Say, |Now tell me: |Remind me: |Er, |Test: |Memory test! |Oh dear, |Help me out, |I forgot, |Be a dear, |Going back a bit, |Right, |And |So |Out of interest, |Hang on, |I can't think, |Let's see if you paid attention: |Just now I told you something. |Hm, |Question: |Okay now: |You know what I told you, |From the top, ".split("|")  # fmt: skip
_GOT = "Got it.|Noted.|OK.|Okay, thanks.|I see.|Right.|Noted, thank you.|Good to know.|Alright.|Sure.|Understood.|Fine.|Thanks for telling me.|I have it.|Very well.|Oh, nice.|Good.|Mm-hm.|I'll keep that.|Okay!".split("|")  # fmt: skip
_OWN_WORDS = "I see|uh huh|good|sweet|no worries|lovely|right then|good stuff|okey doke|mhm ok|yup|sounds good|noted|very good|brill|grand|super|that works|understood|fair enough|all good|oh good|fine fine|perfect|okay great|roger|gotcha|aye|great stuff|indeed".split("|")  # fmt: skip
# key of an answer # what the user says; {n} a name, {p} a place, {v} a thing
_SAID = """\
HELLO # [Hullo|Hi hi|Hey hey hey|Hiyaa|Hey ho|Hello hello|Helloooo|hii|heyy|Ello]; Good [morning|afternoon|evening][ to you| folks| team| everyone|]; [Top of the morning|G'day|Howdy][ partner| friend| to you|]; [Hi|Hello|Hey], [glad I found this|my first try here|I have never used this]; [Well hello|Oh hello|Why hello][ there| again|]; Greetings [and salutations|from {p}|earthling|to the machine|my friend|from us all|, computer|, robot]; [Bonjour|Hola|Ciao bella|Guten Tag|Namaste|Aloha|Moin|Servus]; hello from [sunny|rainy|cold|lovely] {p}; [Hey|Hi] [bot|AI|assistant|pal|buddy|chum|love|computer|machine|you]; [morning|afternoon|evening] all; a very good [morning|day|evening] to you; [Hi|Hello] there, [little one|my friend|stranger|assistant]; [Dear assistant|Dear bot], hello; just popping in to say hi; [hey|hi] :); [Hello|Hi] [world|robot friend|over there]; [Peace|Cheerio hello|Be greeted|I salute you|I bid you good day]; [Good that you are here|Long time no see|There you are|We meet again]; *waves*; knock knock, hello; [Sup|Whazzup|Wotcha|Ay up|Oi oi|Yo yo]
HELLO # [I'm|I am|Im] back[ again| now| from lunch| online|]; [Back|Here I am|Here again] [again|once more|after a break|from the shop]; [It's|It is] me again[, hi|]; [Returned|I have returned|I just got back|I came back]; did you miss me? I'm back; hello again, had to step out; ok I'm here again; sorry for the wait, I'm here now; back at my desk
THANKS # [thanks|thank you|ta|tnx][ ever so| awfully| most kindly| from me too]; [many|a thousand|warm|heartfelt] thanks; [Thanks|Thank you], [that's what I needed|you've been kind|that did it|I get it now|this helps|that's plenty]; [much|greatly|really] appreciated; I'm [much|very|most] [obliged|grateful|thankful]; [You've been|That's been|This was] [a help|very useful|a real help|so helpful]; [Good of you|Kind of you|Decent of you][, thanks|, ta|]; I can't thank you enough; [thanks|thank you] for [putting up with me|being there|the answer|that info|your patience|remembering|listening|explaining]; [danke schön|merci beaucoup|muchas gracias|grazie|arigato|tack]; [bless you|you're a gem|you're a lifesaver|you're a star], thanks; that [saves|saved] me [a lot of time|an hour|the trouble]; [okay|right|perfect|great|lovely|super], thank you; [thank u|thank you kindly|thanks again|thanks a bundle]; I owe you [big time|a drink|one, thanks]; with thanks
BYE # [bye|goodbye|bye-bye|cheerio|ta-ra|toodles|so long|farewell|ciao|adieu][ now| then| everyone| for today| my friend|]; [Right|Okay|OK|Well|So|Alright], [I'd better|I had better|I'd best|I ought to] [be going|be off|get on|run along|get some sleep|make tracks|get to work|see to dinner]; I [must|need to|ought to|really must] [dash|fly|rush|shoot off|hop off|get going|catch a train|fetch the children|walk the dog|feed the cat|do the dishes]; [Time|It's time] [for bed|to go|to head home|to log off|for me to leave|to say goodbye]; [my wife|my boss|my mum|the doorbell|the dog|dinner|duty|a meeting] [calls|is calling]; [I'm|I am|im] [about to leave|out of here|going to bed|going home|going to work|finished for today]; [See|Catch|Talk to|Speak to] you [around|in a bit|in the morning|next week|soon|on Monday|whenever]; [until|till] [tomorrow|then|we meet again|the next time]; [Good night|Night|Sleep tight|Nighty-night|Sweet dreams][, bot|, friend|]; [that'll be all|that will do for now|nothing else today|that's me done|I'm finished here|no more questions][, bye|, goodbye|]; [Take|You take] it easy; [gn|g2g|gtg bye|ttfn|bb|cu|cya later|ttys]; [sorry|forgive me], I [have to leave|must be off|need to go]; have a [pleasant|lovely|splendid|restful] [evening|night|weekend|afternoon]; [I'm|I am] [falling asleep|too tired to go on|nodding off], bye; my [lunch break|break|train ride|shift] is [over|up], bye; [leaving|closing|logging off] now; let's [stop|leave it|finish] here for today; [the bus is|my lift is|my taxi is|they are] [here|outside], got to run
WELL # how are [things|you doing|you getting on|you bearing up|you feeling|u|ya]; how [goes it|is life|are matters|have you been keeping|is it at your end|do you fare][ today| these days|]; [everything|all] [in order|good|as it should be] [with you|at your end|today]; [you|u] [ok|alright|doing fine|good][ today|]; how's [your life|tricks|your morning|your evening|your week|the mood|things]; how [was|is] your [weekend|night|Sunday|day so far]; [are you|you] keeping well; [hope|trust] [you're|all is] well; what's [the latest|new|cooking|the craic|happening]; how are we [this fine morning|today|tonight|feeling]; are you having a good [day|time|morning]; feeling [good|fine|okay] today; [I'm fine|I'm good|Doing well], [yourself|how about you|and how are you]; how do you feel [this fine day|after all that]; is all [fine|good] with you
PRAISE # [good|nice|great|solid|excellent|super|fine|splendid] [answer|reply|stuff there|thinking]; you [did|handled|solved|got] that [well|nicely|perfectly|right]; [wow|oh wow|whoa|gosh], [you're good|that's impressive|that was quick|you remembered|well remembered]; [you're|you are|ur] [brilliant|a genius|so clever|very good|a clever machine|a treasure|really smart|the best|a wonder|lovely|spot on|doing well]; [that's|that was|this is] [impressive|spot on|right|exactly right|correct|clever|very good|smart of you|well put|beautifully done]; I'm [impressed|pleased with you|a fan|happy with that|delighted with you]; [I like|I love|I adore|I really like] [your style|how you work|your answers|talking to you|this chat|you]; [five stars|10 out of 10|full marks|top of the class|gold star|A plus]; [couldn't have put it better|you know your stuff|what a clever bot|you never let me down]; [keep it up like this|carry on like that|keep up the good work]; [bravo|chapeau|hats off|hear hear|hurrah|attaboy|nailed it|bingo]; [smart|clever|good|sweet] [cookie|thing|girl|boy|machine|bot]; you have a [good|great] memory; [not bad|not bad at all|pretty good|well played|nicely remembered]; much better than [I thought|I expected|the last one]; my [son|boss|wife|friend] would like you
SORRY # you [are|really are] [dumb as a brick|rubbish|no good|a waste of time|hopeless at this|a joke|a disgrace|so thick|a moron|a liar|broken|a clown]; [what|that's] [a stupid answer|complete rubbish|garbage|nonsense|an awful reply|tripe|not even close]; [idiot|moron|fool|dummy|clown|blockhead|numbskull|dimwit|nitwit]; I [hate|loathe|can't stand|despise] [you|this thing|this bot|your replies]; you [got|have got] it [wrong|all wrong|backwards|mixed up]; [wrong|nope, wrong|that's wrong|not right|not true|incorrect|false][ again|]; [I never said that|that's not what I said|you misread me|you don't listen|you weren't listening|you don't get it]; [you|u] [suck|stink|annoy me|drive me mad|bore me to tears|know nothing|are useless to me]; [shut up|shut it|get lost|go to hell|go away|drop dead|buzz off]; are you [stupid|deaf|daft|drunk|thick|serious] or what; [my cat|my toaster|a stone|a potato|my toddler] is [smarter|cleverer|brighter] than you; [how|why] are you so [dumb|bad|slow|useless|stupid]; [worst|dumbest|most useless] [bot|assistant|thing|app] [ever|I know|of all]; you [disappoint|disappointed|let] me[ down|]; this is [no help|useless|not helpful|not working|going nowhere]; you made [a mess|an error|a mistake|a blunder]; [stupid|silly|dumb] [computer|robot|algorithm]; I [expected|hoped for] better; [boo|bah|pah|ugh|grr|bleh]; I'm [angry|cross|annoyed|fed up] with you; [no|NO] no no[!|, that's bad]
CAN # what [can|could] [you|u] [do|help with|offer|manage][ for me| then|]; what [are you|is this|are u] [good|useful] [at|for]; [help|help me|help pls|I need help|some help please|assist me|SOS|lend me a hand]; how [can|might] you [help|assist|be useful]; what [should|could|may|can] I [ask|say|try|type|tell you]; [list|show|tell me] your [skills|functions|features|abilities|powers]; [what|which] [kind|sort] of [help|tasks|jobs] [can you do|do you give|is possible]; how does this [work|thing work|chat work]; [I'm|I am] [new here|lost|stuck], [what now|what can you do|help]; [any|got any] [tricks|talents|superpowers|skills]; what's your [purpose|job|use|speciality|point]; [do you|can you] [do|manage] [anything|anything useful|much]; [instructions|usage|manual|user guide|help page]; what do people use you for; are you of any use; can you remember [things|stuff|what I say]; do you [have a memory|remember things|keep notes]; [could|can|would] you [help|assist] me [with something|please|a bit|for a sec]
WHO # [who|what] [are|r] [you|u] [supposed to be|anyway|exactly|again|, actually]; what [is|was] [your|ur] name; [are you|you're] [a human being|a real person|a bot|some AI|flesh and blood|made of silicon|a man|a woman|human or machine|a chatbot|an app]; [am I|I am] [chatting|speaking|writing] to a [machine|human|robot|computer|person]; tell me [about you|who you are|a bit about yourself|your name]; [have|do] you [got a name|have a name|go by a name]; [which|what] [AI|model|system|software|version] [is this|are you|am I using]; how do I [call|address] you; [introduce|explain|describe] yourself[ in a word| please|]; [is|would] there [a human|anybody real|a person] [there|on the other side|behind this]; [you're not|you aren't] [human|real|a person], are you; [hello|hi], who's [this|that|there]; what sort of [creature|machine|being|program] are you; prove you're [not a robot|human|real]
MADE # who [made|built|created|trained|programmed|designed|invented|wrote|coded|fathered] you; where [do|did] you come from; [which|what] [company|lab|firm|people] [made|built|is behind|created] you; who's your [maker|creator|inventor|boss|owner|father]; [by whom|how] were you [made|built|trained|created]; when were you [made|built|born|trained]; whose [product|model|creation|child] are you; who do you belong to; who's behind you; where were you [born|made|trained]
RIGHT # [ok|okay|k|kay|oke|okie dokie|alright|aight|right|right-o|fine|sure|sure thing|yep|yeah|yea|yes|yes indeed|aye|uh-huh|mm|mhm|hmm|I see|aha|oh|oh ok|got ya|noted|roger|fair enough|makes sense|as you wish|very well|agreed|deal|true|indeed|exactly|sounds good|understood|go on then|so be it|suits me|works for me|no objections|if you say so|whatever|as you like|good to know|interesting|okay then|all clear|check|splendid]; [yes|ok|fine|good|right], [let's do that|I agree|I know|I get it|got it|that works]; [no|nope|nah|not really|no no|rather not|not now|no need|don't think so|not at all|never]; [good|fine|great], [then|that's settled|let's leave it at that|we agree]; [hm ok|well ok|ok ok|yes yes|well well|I guess so|maybe|perhaps|possibly|could be|who knows|we'll see]
NOPROBLEM # [sorry|so sorry|ever so sorry|my bad|my fault|apologies|pardon me|forgive me|I apologise|excuse me][ for the trouble| about that| for shouting| for the typo| for being rude| for the delay|, wrong window|, wrong chat|]; [I|i] [was|have been] [rude|unfair|too harsh|mean][, sorry|, forgive me]; [oops|whoops|oopsie|ooh][, sorry|, my mistake|, wrong button|, typo|]; [I did not mean|didn't mean] [it like that|to offend you|to be rude|to bother you]; [I take back|take no notice of] what I said; [ignore|forget|disregard|scrap] that[, sorry|, it's nothing| please|]; [never mind|nvm|nevermind|doesn't matter|it doesn't matter|no matter|forget it|leave it|skip it|let it go|it's nothing][ then| now| please| about that|]; [sorry|excuse me], [my cat sat on the keys|I pressed enter too soon|that was my kid typing|that was meant for someone else]; [don't bother|you needn't bother|not so important|not important after all]
SAD # [I'm|I am|im] [so |really |a bit |terribly |][tired|sad|bored|lonely|down|ill|sick|exhausted|stressed|worried|unhappy|upset|heartbroken|worn out|fed up with everything|not feeling well|under the weather|shattered|knackered|homesick|in pain][ today| tonight| again|]; [I|i] [have|ve got] [a headache|a cold|the blues|too much work|a fever|toothache|nobody to talk to]; my [dog|cat|grandad|best friend|goldfish|car|laptop|phone] [died|is gone|broke|is very ill|passed away][ today| last night|]; I [lost|broke|ruined] my [job|keys|phone|favourite mug|wallet]; I [failed|flunked|messed up] [my exam|the test|my driving test|the interview]; [she|he|my boyfriend|my girlfriend] [left me|dumped me|forgot my birthday|won't talk to me]; [what a|I had a] [horrible|terrible|rotten|long|bad|dreadful] day; [nothing works|everything went wrong|it's all too much|life is hard|I can't sleep|I could cry|I feel awful|I feel low]; they [fired|sacked|robbed|cheated] me; I [burnt the dinner|missed my train|fell off my bike|spilled coffee on my laptop|got a parking ticket]; [so bored|bored bored bored|nothing to do|this is a dull day|I'm dying of boredom]
GLAD # I [passed|aced|got through] [my exam|the test|my driving test|it]; I [got|landed] [the job|a raise|a new job|engaged|a puppy|the flat]; [we|my team] won[ the cup| again|]; [I'm|I am] [so |really |very |][happy|thrilled|over the moon|proud|delighted with life|in love|pregnant|on cloud nine|cheerful|relieved|excited]; [great|good|wonderful|fantastic] news[: it's a girl|: it's a boy|: we bought the house|]; my [daughter|son|sister|cat] [won a prize|got married|had a baby|is well again|learned to walk]; [what a|I had a] [great|lovely|wonderful|perfect|beautiful] [day|morning|evening|weekend|trip]; [life is good|I feel great|I could dance|best day ever|everything worked out]; I [finished|completed] my [thesis|book|marathon|degree]; I [found my keys|found a tenner|fixed it myself|made it home safely]; my [fever|headache|cold] is gone; [yay|woohoo|hooray|yippee], [weekend|it's Friday|holidays|I did it|it works]
BIRTHDAY # [it's|it is|today's] my [birthday|big day|thirtieth birthday]; I'm [one year older|a year older] today; [congratulate me|wish me well|sing for me], it's my birthday; birthday today! [cake for all|hooray|party time|I feel old]; guess who has a birthday today? me; I [have|got] my birthday today; [my birthday is today|today I was born, years ago]
SAME # [happy|merry] [Christmas|Easter|New Year|holidays|Diwali|Halloween|Thanksgiving|weekend]; [have|enjoy] [a lovely holiday|a great summer|the weekend|your evening meal|the sunshine|some rest|a good week]; [best|good|all good|kind] wishes; [good luck|all the best|stay healthy|stay safe|be well|keep warm|get some rest|enjoy][ to you| then| my friend|]; [season's|seasonal] greetings to you; [I wish you|wishing you] [a nice holiday|luck|peace|a happy new year|all good things]; [cheers to you|bottoms up|to your health|here's to you|prost|skol]
MEET # [lovely|so nice] [making the acquaintance of|to make the acquaintance of] you; [glad|delighted|happy|honoured] to [make the acquaintance of|get to know|be introduced to] you; [it's|what] a [pleasure|joy|delight] to [meet|know] you; [charmed|enchanted|how do we do], I'm sure; [nice|lovely|great] to finally meet you
FEEL # [do|can] you [feel|have|know] [pain|fear|joy|love|hope|anger|sadness|emotions|jealousy|pity]; are you [ever |][sad|happy|angry|lonely|bored|scared|in love|jealous|afraid of death|proud]; [do|did] you [love|like|hate|miss|trust|fancy] me; do you [dream|cry|laugh|have a heart|have a soul|have moods|suffer]; are you [conscious|alive|self-aware|sentient|aware of yourself]; [will you|would you] [marry me|be my friend|be my valentine|go out with me]; does it hurt when I [shout|insult you|close the window]; what makes you [happy|sad|angry|laugh|tick]; can a machine love; do you mind [being a machine|being shut down|dying]
BODY # how [tall|heavy|rich|strong] are you; [do you|can you] [eat|drink|sleep|swim|run|smell|sweat|get tired|breathe|drive]; [have you|do you have] [a body|legs|hands|eyes|brothers|a sister|a wife|a family|children|a mother|hair|a cat|friends]; where do you [live|sleep|work|sit|stand]; are you [married|single|a mother|fat|thin|hungry|thirsty|asleep|cold]; what did you [eat|have for lunch|dream] [today|last night]; what's your [shoe size|star sign|favourite meal|eye colour|blood type]; when's your [birthday|bedtime|wedding]; who are your [parents|friends|children]
ONLYCHAT # [can|do|could] you [google|browse|surf|search the web|look online|see the internet|check Wikipedia]; are you [online|connected|on the net|linked to anything]; [where|how] do you [get your facts|know that|know things|get your knowledge]; what do you know[ about the world| about me| in general|]; do you [know|remember] [our last chat|what I said yesterday|everything|everyone|last week]; can you [see|watch|track] [my face|my screen|my room|my files]; do you read [the news|the papers|my mail|my mind]; how much do you know
ENGLISH # do you [speak|know|understand|talk] [Spanish|Dutch|Welsh|Polish|Chinese|Arabic|Hindi|any other tongue|my language]; [which|what|how many] [languages|tongues] do you [speak|know|understand]; [can we|may we|let's|could we] [speak|chat in|switch to|talk] [French|Italian|Russian|Swedish|German]; [habla español|parlez-vous français|sprichst du Deutsch|parla italiano|mówisz po polsku]; are you bilingual; is English all you speak; what's your mother tongue
HERE # [are you|you|u] [still with me|still there|still listening|listening|still awake|following]; [hello|hey], [anybody there|are you asleep|did you hear me|did you crash]; [did|have] you [fall asleep|freeze|hang up|stop working|gone away|left me]; do you [hear|read] me; [ping|test|testing|mic check|testing 123|one two three test]; say something; are you [ready|receiving me|paying attention]; don't leave me
GOON # [can|may|could|might] I [ask you something|tell you something|ask a thing|trouble you|say something|bother you|get your view]; I [have|got|ve got] [a question|some questions|something to tell you|an idea|a problem|news|a riddle|a story|a request]; [listen|look|hear me out|guess what|know what|you know what|wait for it|hold on|one moment|one sec|just a second|let me think|bear with me]; [let me explain|let me start|let me tell you a story|here's the thing|so here's the deal|to make a long story short]; [shall|should|can] I [begin|go on|continue|start|proceed]; I was wondering; I'd like to [tell|ask|show] you something; [you won't believe it|something odd happened|I must confess something|there's more]; to be [continued|honest|frank]
WORRY # [don't|please don't|pls do not] [hate me|be angry|be offended|take it badly|be sad|cry|worry about it]; are you [cross|mad|annoyed|upset|angry|offended] [with me|at me|now|because of me]; did I [upset|hurt|offend|annoy|bother] you; am I [boring|annoying|bothering|disturbing] you; is [that|it] [okay|a problem|too much] [for you|if I ask]; do I ask too [much|many questions]; no hard feelings[, right|, I hope|]; I hope I [don't|didn't] [bother|upset|offend|bore] you; forgive me [for everything|if I was rude|my bad mood]
CANNOT # tell [me|us] [a joke|a funny story|a fairy tale|a bedtime story|something funny|a riddle|a secret|gossip|a lie]; [sing|hum|whistle|rap|dance|play][ me| us|] [a song|something|a tune|a lullaby|for me]; [joke|story|poem|song|riddle|haiku|limerick][ please| pls|, now]; [make|can you make] me [laugh|a sandwich|coffee|rich|smile|a picture|famous]; [write|compose|make up|invent] [a poem|a rap|an essay|a novel|a love letter|my speech|a story|a limerick|some lyrics][ about {v}s| for {n}| for me|]; [draw|paint|sketch] [me |][a horse|a {v}|my portrait|something nice]; [call|ring|phone|text|mail] [{n}|my mother|a taxi|the police|a doctor|my boss][ for me| now|]; [order|buy|fetch|bring] me [a pizza|flowers|a {v}|some food|a beer]; [recommend|suggest] [a film|a book|a restaurant|a wine|a hotel in {p}]; entertain me; [amuse|cheer|comfort|surprise|impress] me[ up| a bit| please|]; [plan|organise|arrange] [my wedding|a trip to {p}|my week|a party]; [teach|show] me [to juggle|Japanese|to cook|chess|to knit]; [give me|I need] [advice|some advice|a tip for the lottery|a compliment|inspiration]; [book|reserve] [me |][a flight to {p}|a table|a room]; [turn on|switch off] [the lights|the radio|the heating]; [play|let's play|shall we play] [chess|hangman|cards|a game|twenty questions]; [bake|cook] [a cake|dinner|something] for me; [translate|summarise] [my book|this novel|the news]; [tell my fortune|read my palm|guess my age|guess what I'm thinking|flip a coin|roll a die]; [do|finish] my [homework|taxes|laundry]
NOIDEA # [what's|whats|how's|how is] the [weather|temperature|forecast|traffic][ like| today| in {p}| over there| outside|]; [nice|lovely|awful|foul|horrid] weather [where you are|at your place|over there]?; is it [raining|snowing|cold|warm|sunny|dark|windy] [outside|where you are|in {p}]; will it [rain|snow|clear up|be hot] [today|tomorrow|at the weekend]; what's the [time|date|day|score|price of {v}s]; who [won|is winning|lost] [the match|the cup|the election|last night]; what [happened|is on TV|is new in {p}] [today|tonight|lately]; who is [{n}|the mayor of {p}|the king|the tallest man]; where is [{n}|{p}|the nearest shop]; when does [the bank|the shop|the train|the sun] [open|close|leave|set]; why is [the sky|grass|water|snow] [blue|green|wet|white]; how [far|big|old] is [{p}|the moon|the sea|the sun]; what [should|shall] I [cook|wear|do|watch] [this evening|today|tomorrow]; what's the meaning of life; is there [a god|life on Mars|a pub near here]; when will I [die|be rich|be happy|marry]; [what day|what year|what time] is it[ today| now|]; how many people live in {p}
MINE # [do|could] you [recall|still know|happen to know|perhaps know] [my name|who I am|my birthday|my address|my job|my age|my number|what I like|where I live|my dog's name|my password|my wife's name]; [what's|what is|whats] my [name|age|address|job|favourite colour|birthday|mother's name|phone number|cat called|password|lucky number|surname]; [who|how old|how tall] am I; where [do I|did I] [live|work|park|leave my keys|grow up]; when [is|was] my [next birthday|wedding day|big exam|next appointment]; [who|what] is my [wife|husband|boss|doctor|sister|hobby|favourite food|car]; can you [tell|give] me my [name|age|address|PIN|birthday]; did I [ever |][tell|give|mention] you my [name|age|job|birthday|number]; [any idea|do you have any idea] [who I am|what I'm called|how old I am|where I come from]; is my [name|age|number] known to you; what do [they|people|my friends] call me; my name[, what is it|, do you know it|]?; [what|which] [name|job|age|pets|hobbies] do I have; [which|what] [town|city|street] [do I live in|am I from]; what am I [called|scared of|like]
HAPPYFOR # [congrats|congratulations|felicitations|well, congratulations][ to you| on being so good| on your work|]; [you won|you made it|you passed the test]; three cheers for you; you get [a medal|a cookie|an award|the prize]; you [earned|deserve] [a break|a treat|applause|a raise]; give yourself a pat on the back
LAUGH # [haha|hehe|hihi|lol|lmao|rofl|ha ha ha|teehee|xD|very funny|that's funny|that was funny|how funny|you crack me up|you make me laugh|funny bot|good one, haha|hilarious]
ILOVE # [I love|I adore|I like|I enjoy|I'm fond of] [rain|snow|summer|the sea|Mondays|music|{v}s|long walks|my garden|cheese|{p}|winter evenings|quiet nights]; [my|our] [{v}|garden|new kitchen|street|cat] is [lovely|so pretty|great|the best]; [today|this morning|tonight] I [baked bread|saw a fox|went swimming|cooked for friends|read a book|slept late]; [it's|it is] [lovely|sunny|warm|a beautiful day|snowing|spring][ here| outside| at last| today|]; [the sun is out|what a sunset|the birds are singing|spring is here|fresh snow today]; I'm [having tea|in the garden|on the sofa|at the beach|on a train|watching the rain]
RAINY # [it's|it is] [raining|pouring|freezing|foggy|grey|windy|so cold|too hot|muggy][ here| outside| again| today|]; [rain again|what awful weather|nasty weather today|the weather is dreadful|such a grey day|I'm soaked|this heat is killing me|I hate this rain|storm outside]
FOOD # [I'm|I am|im] [hungry|starving|peckish|thirsty|famished][ now| again|]; [time for|off for a|just having] [lunch|coffee|tea|a snack|breakfast|dinner]; my [stomach|tummy] [rumbles|is empty]; I could eat a horse; [dinner|lunch] [is ready|smells good]
BUSY # [I'm|I am|im] [busy|swamped|at work|in a meeting|on the phone|driving|in a hurry|late|short of time]; [give me|just] [a minute|a moment|a sec|five minutes]; [hang on|wait there|wait a bit|hold the line|stay there|don't go away|back in a bit|back in five|afk]
WAITING # [are we|is it|are you] [done|finished|over|ready yet]; [hurry|hurry up|faster|quick|come on, hurry|speed up|I don't have all day|what takes you so long|why so slow|you're slow today]
LETSTALK # [let's|let us|can we|shall we|I want to|I'd like to|I just want to] [talk|chat|have a chat|talk a bit|have a natter|converse|keep company]; [talk|speak|chat] [to|with] me; keep me company; [I need|I want] [someone to talk to|company|a friend|a listener]; [got|have you] [time|a minute|a moment] [for me|to talk|for a chat]
TRUST # can I trust you; [are you|you're] [reliable|honest|always right|ever wrong|perfect|accurate]; do you [lie|make mistakes|make things up|ever err]; how [good|reliable|accurate|clever|smart] are you; should I believe you; are you [clever|smart|intelligent|a genius]
SECRET # can you keep a secret; is this [private|secret|safe|confidential]; [do you|will you] [tell anyone|share this|store what I say|save my data|spy on me]; who [reads|sees|gets] [this|what I write|our chat]; promise not to tell
SIZE # how [big|large|small] [are you|is your brain|is this model]; how many [parameters|weights|neurons] [do you have|have you got|are in you]; [number of|your] parameters; are you a [heavyweight|large|small|tiny] model
SWEAR # [damn|dammit|blast|bloody hell|oh no|oh dear|argh|oh my|good grief|for heaven's sake|jeez|crikey|blimey|oh boy|what the heck|bother|drat]
YES # [do|did|can] you [understand|follow|get] [me|that|what I said|what I mean]; [got|get] [it|that|me]; is that clear; [all clear now|comprende|capisce]?; are we [clear|agreed|on the same page]; you [see|follow|with me]; know what I mean; do you see [my point|what I mean]
BOREDBOT # [I'm|I am] [proud of|grateful to|thinking of|worried about] you; I [trust|believe in|need|missed|thought of] you; you're my [friend|best friend|hero|favourite|only friend]; I'm glad [you exist|I found you|you're here]; [hugs|big hug|kisses|xoxo|*hugs*|high five|fist bump|a hug for you]
STOP # [stop|stop it|stop that|enough|that's enough|quiet|silence|hush|shush|cut it out|leave me alone|go to sleep|no more|basta|cease][ now| please| already|]; don't [say|repeat|do] that[ again| any more|]; stay quiet[ for a bit| now|]
RESET # [start over|start again|new topic|change of topic|let's start afresh|other topic|something else|different subject|moving on|next topic|new chat|fresh start][ please| now|]; [let's|can we] [change the subject|talk about something else|move on]
SHORTER # [shorter|be brief|keep it short|too long|in short|short version|less words|briefly][ please| pls|]; [use|write] [fewer words|short sentences|plain English]; don't ramble
REMEMBER # [please |can you |will you |could you |][remember|keep in mind|note|memorise] [something|this|a few things|some facts][ for me| about me|]; I'll [tell|give] you [some facts|a few things about me|something to remember]; [take|can you take] notes
"""
_ANSWERS = {
    "THANKS": "You are welcome.", "BYE": "Goodbye!", "WELL": "I am well, thank you.", "PRAISE": "Thank you, I am glad.", "SORRY": "I am sorry. I make mistakes.", "CAN": "I can call tools, extract JSON, label texts, answer from a text and remember what you tell me.",
    "WHO": "I am the Banyan pocket model, a very small language model.", "MADE": "I was trained to be part of Banyan.", "RIGHT": "All right.", "NOPROBLEM": "No problem.", "SAD": "I am sorry to hear that.", "GLAD": "I am happy to hear that.", "BIRTHDAY": "Happy birthday!", "SAME": "The same to you!", "MEET": "Nice to meet you too.",
    "FEEL": "I am a program, so I have no feelings.", "BODY": "I am a program, so I have no body and no family.", "ONLYCHAT": "I only know what stands in this chat.", "ENGLISH": "I speak only English.", "HERE": "Yes, I am here.", "GOON": "Please go on.", "WORRY": "Nothing to worry about.", "HAPPYFOR": "Thank you, I am glad.",
    "LAUGH": "I am happy to hear that.", "ILOVE": "I am happy to hear that.", "RAINY": "I am sorry to hear that.", "FOOD": "Enjoy your meal!", "BUSY": "Take your time.", "WAITING": "I am ready.", "LETSTALK": "Please go on.", "TRUST": "I make mistakes, so please check what I say.", "SECRET": "I only know what stands in this chat.", "SIZE": "I have about seven million parameters.",
    "SWEAR": "I am sorry to hear that.", "YES": "Yes.", "BOREDBOT": "Thank you, I am glad.", "STOP": "All right.", "RESET": "All right.", "SHORTER": "All right.", "REMEMBER": "Please go on.",
}  # fmt: skip
_OPENING = "Hey, |Hi, |Okay, |Well, |So, |Oh, |Right, |Hm, |Um, |Look, |And now, |Now, |Ah, |Er, |Just, |By the way, |Honestly, |Lol, |Psst, |Dear bot, ".split("|")  # fmt: skip
_CLOSING = ", you know|, mate|, my friend|, really|, I say|, bot|, dear|, haha| :)| :D| ;)| ...| lol| :(|, love|, man|, pal|, honestly|, to be fair|, {n} here".split("|")  # fmt: skip
_HOUSE = (
    "[You are|Act as|Be] [the voice|the assistant|the helper|a clerk|the front desk] of {w}.", "{w}: [reply in few words|be courteous|help callers].", "[Only short|Brief|Crisp] [answers|replies], please.", "[Helper|Agent|Operator] on duty at {w} in {p}.", "It is {d}. [The shop is open|We close at {t}|{n} is in charge].",
    "[The person|Whoever] [writing|chatting] is a [guest|patient|student|customer|tenant|driver] of {w}.", "[Chat|Text] [service|line|bot] for {p}.", "[Mood|Manner]: [cheerful|calm|businesslike|dry].", "pocket assistant", "[Answer truthfully|Say when you don't know|No guessing].", "You [belong to|serve|work with] {n} and [colleagues|family|friends].", "# {w}^[Be of help|Be polite|Assist].", "[Your|The] [task|duty] is [to help|to chat and help|to note facts].", "<role>assistant</role>", "Language: English^Length: short",
)
# fmt: on


class _Reading(NamedTuple):
    """A passage. parts: its first part, and others that may change places. asked: field -> questions for it."""

    parts: tuple[str, ...]
    asked: dict[str, tuple[str, ...]]


class _Fact(NamedTuple):
    """A fact of the user. told: statements; asked: questions; answer: the template of the answer."""

    topic: str
    maker: str
    told: tuple[str, ...]
    asked: tuple[str, ...]
    answer: str


def _read(text: str) -> tuple[_Reading, ...]:
    readings = []
    for block in text.strip().split("\n\n"):
        head, *rest = block.split("\n")
        asked = (line.split(": ", 1) for line in rest)
        readings.append(_Reading(tuple(head.split(" ~ ")), {field: tuple(q.split("; ")) for field, q in asked}))
    return tuple(readings)


def _facts(text: str, topic: str = "") -> tuple[_Fact, ...]:
    facts = []
    for line in text.strip().split("\n"):
        head, told, asked, answer = line.split(" # ")
        name, _, maker = head.rpartition(" ")
        facts.append(_Fact(name or topic + maker, maker, tuple(told.split("; ")), tuple(asked.split("; ")), answer))
    return tuple(facts)


def _split(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(part.strip() for part in line.split(" # ")) for line in text.strip().split("\n"))


READINGS, EXTRAS = _read(_READINGS), _read(_EXTRAS)
FACTS, KIN_FACTS = _facts(_FACTS), _facts(_KIN_FACTS)
DUTIES, ROLES = _split(_DUTIES), _split(_ROLES)
SAID = tuple((row[0], tuple(row[1].split("; "))) for row in _split(_SAID))
INTROS = tuple(_INTROS.split(";"))
# groups of similar topics: if one was told, no question about another is asked as unknown
_NEAR = tuple(
    frozenset(line.split())
    for line in """name surname nickname
home born street street2 floor uni office firm
trip trip2 hotel depart nights room booking
car caryear plate park
flight gate seat train bus
order booking parcel voucher
job firm project office interview pay team2
wife date friend mate wedding
doctor gp2 ill dentist toothday
food diet allergy drink dinner
bought wish gift lent lost fix sell spot fear theme
teacher school uni
phone phonebill bill
gym gymcode sport
move due depart deadline
age birthday
rent landlord
savings debt bank budget
wifi door safe bike locker pin""".split("\n")
)
_STARTS = frozenset("My The We Our You They There To This Put Call Do Text Mail Our Just At When".split())
_COMMON = (
    "HELLO",
    "THANKS",
    "BYE",
    "WELL",
    "PRAISE",
    "SORRY",
    "RIGHT",
    "CAN",
    "WHO",
    "NOPROBLEM",
    "CANNOT",
    "NOIDEA",
    "MINE",
)
_PARTNERS = frozenset("husband wife partner girlfriend boyfriend fiancé ex".split())


def _typed(d: Draw, text: str) -> str:
    """The text as if typed in haste: at random without a capital, end punctuation or apostrophes, or in capitals."""
    if d.chance(0.2) and text[0] != "{":
        text = text[0].lower() + text[1:]
    elif d.chance(0.55):
        text = text[0].upper() + text[1:]
    if d.chance(0.2):
        text = text.rstrip(".!?")
    if d.chance(0.15):
        text = text.replace("'", "")
    if d.chance(0.02) and "{" not in text:
        text = text.upper()
    return text


def _put(text: str, fields: Mapping[str, str]) -> str:
    """A template with its fields filled in. `a` before a field becomes `an` if its value begins with a vowel."""

    def article(found: re.Match[str]) -> str:
        return f"{found[1]}n {{{found[2]}}}" if fields[found[2]][:1] in tuple("aeiou") else found[0]

    return re.sub(r"\b([aA]) \{(\w+)\}", article, text).format(**fields)


def _filled(d: Draw, makers: Makers, texts: list[str]) -> dict[str, str]:
    """Field -> value for all fields of the texts, no two values alike."""
    fields: dict[str, str] = {}
    for field in dict.fromkeys(field for text in texts for field in _FIELD.findall(text)):
        make = makers[field.rstrip("0123456789")]
        value = make(d)
        while value in fields.values():
            value = make(d)
        fields[field] = value
    return fields


def _passage(d: Draw, makers: Makers) -> tuple[str, Asked, list[str]]:
    """(A text, [(question, answer)], questions that the text does not answer)."""
    reading = d.pick(READINGS)
    head, *rest = (d.vary(part) for part in reading.parts)
    if d.chance(0.5):
        d.rng.shuffle(rest)
    left_out = rest.pop() if len(rest) > 2 and d.chance(0.25) else ""
    fields = _filled(d, makers, [head, *rest, left_out])
    told = {field for part in (head, *rest) for field in _FIELD.findall(part)}
    asked, untold = [], []
    for field, questions in reading.asked.items():
        for question in questions:
            if all(other in told for other in _FIELD.findall(question)):
                if field in told:
                    asked.append((_put(d.vary(question), fields), fields[field]))
                elif field in fields:
                    untold.append(_put(d.vary(question), fields))
    text = d.pick((" ", " ", " ", "^", "^- ")).join(_put(part, fields) for part in (head, *rest))
    return text, asked, untold


def _apart(d: Draw, rows: tuple[tuple[str, ...], ...], n: int) -> list[tuple[str, ...]]:
    """At most n rows that share no word of five letters or more."""
    chosen: list[tuple[str, ...]] = []
    used: set[str] = set()
    for row in d.some(rows, 4 * n):
        words = set(re.findall("[a-z]{5,}", " ".join(row))) - {"their", "there", "where", "whose", "about", "brings"}
        if len(chosen) < n and not words & used:
            chosen.append(row)
            used |= words
    return chosen


def _people(d: Draw, makers: Makers) -> tuple[str, Asked, list[str]]:
    """Like `_passage`, with a text about who does or is what, perhaps with opening times, prices and the like."""
    n = d.pick((2, 2, 3, 3, 4, 5))
    is_duty = d.chance(0.55)
    rows = _apart(d, DUTIES if is_duty else ROLES, n)
    names = list(_filled(d, makers, [f"{{{'f' if d.chance(0.3) else 'n'}{i}}}" for i in range(len(rows))]).values())
    told, asked = [], []
    way = d.pick(_ROLE_TOLD) if d.chance(0.4) else ""
    for row, name in zip(rows, names, strict=True):
        if is_duty:
            told.append((row[0] if d.chance(0.65) else row[1]).format(n=name))
            verb = row[0].removeprefix("{n} ")
            asked += [(f"who {q}?", name) for q in (verb, *row[2].split("; ")) if not q.startswith(("does ", "are ", "can ", "is the wood"))]  # fmt: skip
            asked += [(f"{d.pick(('tell me who', 'which person', 'I need the one who', 'name of whoever', 'which of them'))} {verb}?", name)]  # fmt: skip
            asked += [(f"who {q}?", name) for q in row[2].split("; ") if q.startswith(("does ", "are ", "can ", "is the wood"))]  # fmt: skip
        else:
            told.append((way or d.pick(_ROLE_TOLD)).format(r=row[0], n=name))
            asked += [(d.pick(_ROLE_ASKED).format(r=row[0]), name) for _ in range(3)]
            asked += [(f"who {q}?", name) for q in row[1].split("; ")]
            asked += [(d.pick(("what does {n} do?", "what is {n}?", "{n} is what?", "what's {n}'s job?")).format(n=name), row[0])] if d.chance(0.3) else []  # fmt: skip
    between = d.pick(_BETWEEN)
    text = ""
    for i, part in enumerate(told):
        joint = "" if not i else between if d.chance(0.6) else d.pick(_BETWEEN)
        is_start = not joint or joint[0] in ".\n"
        text += joint + (part[0].upper() + part[1:] if is_start and d.chance(0.9) else part)
    parts = [text + d.pick((".", ".", ".", "!", ""))]
    intro = d.vary(d.pick(INTROS)) if d.chance(0.6) else ""
    extras = [(d.vary(extra.parts[0]), extra.asked) for extra in d.some(EXTRAS, d.pick((0, 1, 1, 2)))]
    fields = _filled(d, makers, [intro, *(sentence for sentence, _ in extras)])
    for sentence, questions in extras:
        parts.insert(d.rng.randrange(len(parts) + 1), _put(sentence, fields))
        asked += [(d.vary(q).format(**fields), fields[field]) for field, ways in questions.items() for q in ways if field in fields]  # fmt: skip
    if parts[0] == "" or not intro:
        return d.pick((" ", " ", "^")).join(parts), asked, []
    return intro.format(**fields) + d.pick((" ", "^")) + d.pick((" ", " ", "^")).join(parts), asked, []


def reading(d: Draw, makers: Makers, system: list[Message], no_idea: str) -> list[Message]:
    """A passage and questions, each answered by a span of it or, if the passage lacks the answer, by `no_idea`."""
    text, asked, untold = (_passage if d.chance(0.6) else _people)(d, makers)
    messages = [*system]
    for i in range(d.pick((1, 1, 2, 3, 4))):
        question, answer = d.pick(asked)
        if untold and d.chance(0.12):
            question, answer = d.pick(untold), no_idea
        question = _typed(d, question)
        if d.chance(0.1):
            question = d.pick(_ASK[:3] + _ASK[14:16]) + question
        layout = d.vary(d.pick(_LAYOUTS))
        if layout.startswith("{q} ") and question[-1] not in "?.":
            question += "?"
        content = question if i else layout.replace("{p}", text).replace("{q}", question).replace("^", "\n")  # fmt: skip
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    return messages


def _own(d: Draw, makers: Makers, n: int) -> list[tuple[_Fact, str, str]]:
    """n facts about the user and relatives, as (fact, relative, value)."""
    chosen: list[tuple[_Fact, str, str]] = []
    topics: set[str] = set()
    kin: list[str] = []
    values: set[str] = set()
    names = [FACTS[0], KIN_FACTS[0]] if d.chance(0.25) else []
    while len(chosen) < n:
        is_kin = d.chance(0.3)
        fact = names.pop() if names else d.pick(KIN_FACTS if is_kin else FACTS)
        r = ""
        if fact in KIN_FACTS:
            r = d.pick(kin) if kin and d.chance(0.4) else d.pick(_KIN)
            if r not in kin and (any(r.split()[-1] == other.split()[-1] for other in kin) or (r in _PARTNERS and ("wife" in topics or "date" in topics))):  # fmt: skip
                continue
        topic = r + fact.topic
        value = makers[fact.maker](d)
        if topic in topics or value in values or (topic in ("wife", "date") and _PARTNERS & set(kin)):
            continue
        topics.add(topic)
        values.add(value)
        kin += [r] if r and r not in kin else []
        chosen.append((fact, r, value))
    return d.some(chosen, len(chosen))


def _say(d: Draw, ways: tuple[str, ...], r: str, v: str) -> str:
    return _put(_typed(d, d.vary(d.pick(ways))), {"r": r, "v": v})


def _told(d: Draw, fact: _Fact, r: str, v: str) -> str:
    text = _say(d, fact.told, r, v)
    if d.chance(0.12):
        lead = d.pick(_LEAD)
        text = lead + (text[0].lower() + text[1:] if text.split()[0] in _STARTS and lead[-2] not in ".!:" else text)
    if d.chance(0.1):
        text += ("" if text[-1] in ".!?" else ".") + d.pick(_TAIL)
    return text


def _question(d: Draw, fact: _Fact, r: str) -> str:
    text = _say(d, fact.asked, r, "")
    return d.pick(_ASK) + text if d.chance(0.2) else text


def recall(
    d: Draw, makers: Makers, system: list[Message], no_idea: str, noted: str, chat: Callable[[list[Message]], None]
) -> list[Message]:
    """Facts told in one message or in many turns, one perhaps told again with a new value, and questions about them."""
    facts = _own(d, makers, d.pick((1, 2, 2, 3, 3, 4, 5, 6)))
    messages: list[Message] = [*system]
    told = [_told(d, fact, r, v) for fact, r, v in facts]
    i = 0
    known = {r + fact.topic: (fact, r, v) for fact, r, v in facts}
    if d.chance(0.15):  # a fact is told again with a new value
        at = d.rng.randrange(len(facts))
        fact, r, _ = facts[at]
        new = makers[fact.maker](d)
        told.insert(d.rng.randrange(at + 1, len(told) + 1), d.pick(_CHANGED) + _say(d, fact.told, r, new))
        known[r + fact.topic] = (fact, r, new)
    topics = {fact.topic for fact, r, _ in known.values() if not r}
    blocked = topics.union(*(near for near in _NEAR if near & topics))
    unknown = [fact for fact in d.some(FACTS, 12) if fact.topic not in blocked]
    if "name" not in blocked and any(r for _, r, _ in facts) and d.chance(0.3):
        unknown = [FACTS[0]]
    if any(r in _PARTNERS for _, r, _ in facts):
        unknown = [fact for fact in unknown if fact.topic not in ("wife", "date")]
    of_kin = [
        (other, r)
        for _, r, _ in facts
        if r
        for other in KIN_FACTS
        if r + other.topic not in known and other.topic not in "jwe"
    ]
    kin = {r for _, r, _ in facts}
    if not kin & _PARTNERS and not topics & {"wife", "date", "siblings", "kids"}:
        other = d.pick(_KIN)
        of_kin += (
            []
            if any(other.split()[-1] in r or (r and r.split()[-1] in other) for r in kin)
            else [(KIN_FACTS[0], other)]
        )
    questions: list[tuple[_Fact, str, str]] = []
    order = list(known.values())
    for _ in range(d.pick((1, 1, 2, 3, 4))):
        fact, r, v = d.pick(order)
        if of_kin and d.chance(0.08):
            questions.append((*d.pick(of_kin), no_idea))
        elif unknown and d.chance(0.12):
            questions.append((unknown.pop(), "", no_idea))
        else:
            questions.append((fact, r, _put(fact.answer, {"r": r, "v": v})))
    head = ""
    if d.chance(0.3):
        joint = d.pick((" ", " ", "\n", ". "))
        head = joint.join(
            text.rstrip(".") if joint == ". " else text if joint != " " or text[-1] in ".!?)" else f"{text}."
            for text in told
        )
        head += d.pick((" ", "\n", "\n\n")) if head[-1] in ".!?" else d.pick((". ", "\n", "\n\n"))
    while i < len(told) and not head:
        step = d.pick((1, 1, 1, 1, 2, 3))
        reply = noted if d.chance(0.5) else d.pick(_GOT)
        content = " ".join(text if text[-1] in ".!?" or len(told[i : i + step]) == 1 else f"{text}." for text in told[i : i + step])  # fmt: skip
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": reply, "is_given": reply != noted}]  # fmt: skip
        i += step
        for _ in range(d.pick((0, 0, 0, 1, 2))):
            if d.chance(0.3):
                messages += [{"role": "user", "content": _typed(d, d.pick(_OWN_WORDS))}, {"role": "assistant", "content": "All right."}]  # fmt: skip
            else:
                chat(messages)
    for fact, r, answer in questions:
        messages += [
            {"role": "user", "content": head + _question(d, fact, r)},
            {"role": "assistant", "content": answer},
        ]
        head = ""
        if d.chance(0.1):
            chat(messages)
    return messages


def said(d: Draw, makers: Makers, hello: str, no_idea: str, cannot: str, *, is_told: bool) -> tuple[str, str]:
    """(A short turn of the user, its answer). is_told: the user may have told facts, so ask for none."""
    answers = {**_ANSWERS, "HELLO": hello, "NOIDEA": no_idea, "MINE": no_idea, "CANNOT": cannot}
    kind, ways = d.pick(SAID)
    is_common = d.chance(0.4)
    while (is_common and kind not in _COMMON) or (is_told and kind == "MINE"):
        kind, ways = d.pick(SAID)
    if kind == "MINE" and d.chance(0.3):
        text = d.vary(d.pick(d.pick(FACTS).asked))
    else:
        text = d.vary(d.pick(ways))
        text = text.format(**_filled(d, makers, [text]))
    if d.chance(0.08):
        text = d.pick(_OPENING) + text
    if d.chance(0.08) and text[-1] not in "?!":
        text += d.pick(_CLOSING[:-1])
    is_question = re.match("(what|who|how|where|when|why|which|whose|are|is|can|do|did|have|does|will|could|would|may|should|any)\\b", text, re.I)  # fmt: skip
    if text[-1].isalnum():
        text += d.pick(("?", "?", "?", "??", "")) if is_question else d.pick((".", ".", "!", "", "", "!!"))
    return _typed(d, text), answers[kind]


def house(d: Draw, makers: Makers) -> str:
    """The text of a system message."""
    text = d.vary(d.pick(_HOUSE))
    return text.format(**_filled(d, makers, [text])).replace("^", "\n")


def wording() -> str:
    """All words around the values."""
    return f"{_READINGS} {_DUTIES} {_ROLES} {_EXTRAS} {_INTROS} {_ROLE_TOLD} {_ROLE_ASKED} {_LAYOUTS} {_FACTS} {_KIN} {_KIN_FACTS} {_CHANGED} {_LEAD} {_TAIL} {_ASK} {_OWN_WORDS} {_SAID} {_ANSWERS} {_HOUSE}"
