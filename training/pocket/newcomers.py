"""A third held-out set, by another author than `strangers`, written after the training text.

It shares nothing with the training text or with `strangers` (`tests/training` checks it). Look at its scores only: if
training text is written by someone who knows its wrong answers, it becomes a development set, as `strangers` did.
"""

# Phrases are long lines.
# ruff: noqa: E501, SIM905

import random

from pocket.strangers import HELLO, NO_IDEA, Ask, Author, integer, of, reference
from pocket.tools import Tool

FIRST = "Tuulikki Bhavna Ngozi Thandiwe Iolanda Chidi Mairead Ravindra Katarzyna Aroha Siddharth Lupita Ebru Gudrun Nkechi Paavo Rosalind Sione Tariq Vesna Wilhelmina Yusuf Zoltan Trevor Maribel Haruto Odette Farhan".split()  # fmt: skip
LAST = "Castellanos Oyelaran Virtanen Deshpande Kavanagh Pellegrini Sandoval Ngata Bielski Yildirim Abernathy Chaudhary Grimaldi Holloway Jankovic Lombardi Nakagawa Pereira Quispe Rasmussen Stavrou Tamang Weatherby Osei".split()  # fmt: skip
PLACES = "Ljubljana Galway Cusco Winnipeg Kigali Turku Salamanca Plovdiv Hobart Sapporo Windhoek Gothenburg Rosario Tucson Graz Penang Brno Oaxaca Swansea Pune".split()  # fmt: skip
PETS = "Cleo Otis Snickers Turnip Fudge Juniper Crumpet Marzipan".split()
STREETS = ("Foundry Street", "Old Tannery Road", "Quay Street", "Bishop's Hill", "Windmill Avenue", "Chestnut Drive")
MONTHS = "January February March April May June July August September October November December".split()

_person, _place, _pet, _street = of(*FIRST), of(*PLACES), of(*PETS), of(*STREETS)


def _full(r: random.Random) -> str:
    return f"{r.choice(FIRST)} {r.choice(LAST)}"


def _email(r: random.Random) -> str:
    return f"{r.choice(FIRST).lower()}.{r.choice(LAST).lower()}@{r.choice(('posteo.net', 'fernhall.org', 'inbox.co'))}"


def _time(r: random.Random) -> str:
    return f"{r.randint(7, 22):02}:{r.randint(0, 11) * 5:02}"


def _date(r: random.Random) -> str:
    year, month, day = r.randint(2021, 2032), r.randint(1, 12), r.randint(1, 28)
    return r.choice((f"{year}-{month:02}-{day:02}", f"{day} {MONTHS[month - 1]} {year}", f"{day}/{month}/{year}"))


def _decimal(r: random.Random) -> str:
    return f"{r.randint(1, 380)}.{r.randint(1, 9)}"


NEWCOMERS = Author(
    name="newcomers",
    people=FIRST,
    names=(*LAST, *PLACES, *PETS),
    systems=("", "", "You're the help line of a small hotel.", "Be brief and polite.", "You help visitors of the Lakeside Library.", "Never guess: look things up with the tools you've got.", "You live on a tablet in our family kitchen."),
    asks=(
        Ask(Tool("getStockPrice", "Returns the latest price for a ticker symbol", {"ticker": "string"}),
            ("What is {ticker} trading at?", "Latest price of {ticker} stock, please", "how much is one share of {ticker} right now", "Can you check the share price of {ticker}?"),
            {"ticker": of("NVDA", "SHEL", "TSM", "ASML", "KO")}, _decimal),
        Ask(Tool("next_departure", "Time of the next bus or tram of a line from a stop", {"line": "string", "stop": "string"}),
            ("When does the next {line} leave from {stop}?", "I'm at {stop}. When's the next {line}?", "Next {line} from {stop}, please."),
            {"line": of("M2", "S41", "N9", "U7"), "stop": of("Town Hall", "Central Station", "Riverside", "University")}, _time),
        Ask(Tool("create_reminder", "Saves a reminder and returns its ID", {"task": "string", "time": "string"}),
            ("Remind me to {task} at {time}.", "At {time} I have to {task}, don't let me forget.", "Set a reminder for {time}: {task}"),
            {"task": of("water the plants", "call the bank", "feed the fish", "take out the bins"), "time": _time}, reference),
        Ask(Tool("order_status", "Get the status of a customer's order by its order number", {"order_number": "string"}),
            ("What's happening with order {order_number}?", "Has my order {order_number} been sent out yet?", "I ordered something last week, the number is {order_number}. What's the status?", "status of {order_number} pls"),
            {"order_number": reference}, of("shipped", "backordered", "awaiting payment", "cancelled", "being packed")),
        Ask(Tool("check_inventory", "Number of units of a product that a store has left", {"product": "string", "store": "string"}),
            ("How many units of the {product} does the {store} store have?", "Does {store} still have the {product}, and how many?", "Check the inventory at {store} for {product}"),
            {"product": of("desk fan", "camping stove", "blue kettle", "yoga mat"), "store": _place}, integer(0, 340)),
        Ask(Tool("meeting_room_free", "Checks whether a meeting room is available on a weekday", {"room": "string", "day": "string"}),
            ("Is {room} free on {day}?", "Can we have {room} on {day}?", "I'd like to use {room} on {day}, is it available?"),
            {"room": of("Aspen", "Birch", "Studio North", "Hall B"), "day": of("Monday", "Tuesday", "Thursday", "Friday")}, of("available", "occupied", "free until noon")),
        Ask(Tool("translateWord", "Translate an English word to another language", {"word": "string", "language": "string"}),
            ("How would a native say {word} in {language}?", "What's the {language} word for {word}?", "I need the word {word} translated to {language}"),
            {"word": of("bucket", "candle", "neighbour", "butterfly", "umbrella"), "language": of("Finnish", "Basque", "Zulu", "Hungarian")}, of("velnato", "sarqui", "omtaluka", "perhuna")),
        Ask(Tool("get_grade", "Fetch the grade of a student in one subject", {"student": "string", "subject": "string"}),
            ("Which grade has {student} got in {subject} this term?", "How did {student} do in {subject}?", "{student}, {subject}: what's the grade?"),
            {"student": _full, "subject": of("chemistry", "history", "biology", "art")}, of("A-", "B+", "C", "D+")),
        Ask(Tool("who_is_on_call", "Name of the engineer who is on call for a team", {"team": "string"}),
            ("Who's on call for {team} tonight?", "Which engineer do I page for {team}?", "Something broke. Who is on call in the {team} team?"),
            {"team": of("payments", "networking", "storage", "frontend")}, _full),
        Ask(Tool("sunset", "Sunset time at a location (local time)", {"location": "string"}),
            ("What time is sunset in {location}?", "When does the sun go down in {location} this evening?", "At what time will it get dark in {location}?"),
            {"location": _place}, _time),
        Ask(Tool("user_email", "Looks up a user's e-mail address by username", {"username": "string"}),
            ("What e-mail does the user {username} have?", "I need the email address of {username}.", "Where can I write to {username}? I'm looking for an e-mail address."),
            {"username": lambda r: f"{r.choice(FIRST).lower()}{r.randint(2, 99)}"}, _email),
        Ask(Tool("set_thermostat", "Set the target temperature (Celsius) of a room", {"room": "string", "degrees": "integer"}),
            ("Can you get the {room} up to {degrees} degrees?", "It's cold, please heat the {room} to {degrees} degrees", "I'd like {degrees} degrees in the {room}."),
            {"room": of("bedroom", "kitchen", "bathroom", "study"), "degrees": integer(16, 25)}, of("accepted", "heating on", "ready in 20 minutes")),
    ),
    sums=(
        ("Quick one: {a} plus {b}?", "{a}+{b}"), ("What do I get if I subtract {b} from {a}?", "{a}-{b}"), ("{b} tickets for {a} each, how much is that altogether?", "{a}*{b}"),
        ("split {a} evenly between {b} people", "{a}/{b}"), ("I had {a} in my account and paid {b} for shoes. How much do I have now?", "{a}-{b}"),
        ("There are {a} metres of tape on a roll. How many metres are on {b} rolls?", "{a}*{b}"), ("{p} percent of {a} is how much?", "{p}*{a}/100"),
        ("Dinner was {a} and I'd like to tip {p} percent. How big is the tip?", "{a}*{p}/100"), ("{a} split into {b} even parts makes how many each", "{a}/{b}"), ("can you add up {a}, {b} and {p}?", "{a}+{b}+{p}"),
        ("My son reads {b} pages a day. How many pages does he read in {p} days?", "{b}*{p}"), ("One cake needs {a} grams of flour. I'm baking {b} of them, how much flour do I need?", "{a}*{b}"),
        ("We sold {a} litres of lemonade in the morning and {b} litres in the afternoon. How much did we sell?", "{a}+{b}"), ("What's the result of {a} * {b} - {p}?", "{a}*{b}-{p}"),
        ("I earn {a} an hour. What do I get for {b} hours?", "{a}*{b}"),
    ),
    units=(
        ("The trail is {v} km long. What's that in miles?", "km", "miles"), ("The oven should be at {v} Celsius, what is this in Fahrenheit?", "Celsius", "Fahrenheit"), ("{v} inches to cm", "inches", "cm"),
        ("Our baby weighs {v} pounds. And in kg?", "pounds", "kg"), ("how many cups fit into {v} litres?", "litres", "cups"), ("The film runs {v} minutes, so how many hours?", "minutes", "hours"), ("Is there a way to give me {v} yards in m?", "yards", "m"),
    ),
    dates=(
        ("The warranty began on {d} and lasts {k} days. When does it end?", 1), ("Counting {k} days on from {d}, which date do I land on?", 1), ("I have to apply {k} days ahead of {d}. What's the deadline?", -1),
        ("They sent it off on {d} and it takes {k} days. When will it get here?", 1), ("which day came {k} days earlier than {d}", -1),
    ),
    records=(
        ({"candidate": _full, "position": of("data analyst", "head chef", "site manager", "school nurse"), "years_experience": integer(2, 31), "city": _place},
         ("{candidate} is applying for {position} and brings {years_experience} years of experience. Lives in {city}.", "Application: {position}\nCandidate: {candidate}, {city}\nExperience: {years_experience} years", "We interviewed {candidate} from {city} for the role of {position}; {years_experience} years of experience.")),
        ({"street": _street, "bedrooms": integer(2, 6), "monthly_rent": integer(430, 3900), "available_from": _date},
         ("{bedrooms} bedroom flat on {street}, {monthly_rent} euros a month, available from {available_from}.", "To let: {street}. Bedrooms: {bedrooms}. Rent: {monthly_rent} per month. Move in from {available_from}.", "The flat on {street} has {bedrooms} bedrooms, the rent is {monthly_rent} a month and you could move in on {available_from}.")),
        ({"make": of("Skoda", "Subaru", "Peugeot", "Volvo", "Kia"), "year": integer(1998, 2025), "mileage": integer(4000, 290000), "asking_price": integer(900, 38000)},
         ("Selling my {year} {make}, {mileage} km on the clock, asking {asking_price} euros.", "{make}, built in {year}, mileage {mileage} km, price {asking_price}", "The {make} is from {year}, it has done {mileage} kilometres and the owner is asking {asking_price} for it.")),
        ({"ticket_id": reference, "reporter": _full, "priority": of("low", "high", "urgent", "critical"), "component": of("login page", "printer driver", "search index", "mobile app")},
         ("{reporter} opened {ticket_id}: the {component} is broken, priority {priority}.", "[{priority}] {ticket_id}: {component} not working (reported by {reporter})", "Ticket {ticket_id}\nReporter: {reporter}\nComponent: {component}\nPriority: {priority}")),
        ({"topic": of("budget review", "hiring plan", "office move", "website launch"), "organizer": _full, "room": of("B204", "Cedar", "Boardroom 2", "Annex 1"), "start_time": _time},
         ("{organizer} invites you to a meeting about the {topic}, {start_time} in {room}.", "Meeting: {topic}. Where: {room}. Start: {start_time}. Organizer: {organizer}.", "Don't forget, {start_time} we have the {topic} with {organizer}. We meet in {room}.")),
        ({"guest": _full, "room_number": integer(101, 640), "check_in": _date, "nights": integer(2, 21)},
         ("{guest} checks in on {check_in} and stays {nights} nights in room {room_number}.", "Room {room_number} is booked for {guest}, {nights} nights, check-in {check_in}.", "Hello, this is {guest}. I'd like to confirm my booking: {nights} nights from {check_in}, you said room {room_number}.")),
        ({"host": of("web-03", "db-east-1", "cache-7", "edge-12"), "service": of("nginx", "postgres", "redis"), "status_code": of("502", "404", "503", "429"), "latency_ms": integer(12, 4800)},
         ("{service} on {host} returned status {status_code} after {latency_ms} ms", "host={host} service={service} status={status_code} latency={latency_ms}ms", "Alert! {host}: {service} gave a {status_code} and the request took {latency_ms} milliseconds.")),
        ({"pet_name": _pet, "species": of("rabbit", "parrot", "tortoise", "ferret"), "owner": _full, "weight_kg": _decimal},
         ("{pet_name} is a {species} that belongs to {owner}, weight {weight_kg} kg.", "Patient: {pet_name} ({species}), {weight_kg} kg. Owner: {owner}.", "{owner} brought in {pet_name} today. The {species} weighs {weight_kg} kg.")),
        ({"band": of("The Velvet Kites", "Paper Lions", "Mono Harbor", "Low Tide"), "venue": of("Palace Theatre", "The Cellar", "Dock 9", "Old Brewery"), "concert_date": _date, "ticket_price": _decimal},
         ("{band} will play at {venue} on {concert_date}, tickets cost {ticket_price} euros.", "{concert_date}: {band} live at {venue}! Tickets {ticket_price}", "I've got tickets for {band}! It's at {venue} on {concert_date} and I only paid {ticket_price} for each ticket.")),
        ({"course": of("Linear Algebra", "Marine Biology", "Medieval History", "Statistics II"), "lecturer": _full, "credits": integer(2, 12), "enrolled": integer(14, 310)},
         ("{lecturer} teaches {course}, worth {credits} credits, and has {enrolled} students enrolled.", "{course} | {credits} credits | lecturer: {lecturer} | enrolled: {enrolled}", "This term {enrolled} students are enrolled in {course} with {lecturer}. You get {credits} credits for the course.")),
        ({"sender": _full, "recipient": _full, "amount": integer(15, 7500), "reference": reference},
         ("{sender} transferred {amount} dollars to {recipient}, reference {reference}.", "From: {sender}\nTo: {recipient}\nAmount: {amount}\nReference: {reference}", "{recipient} received {amount} dollars from {sender}. The reference was {reference}.")),
        ({"runner": _full, "bib_number": integer(100, 9400), "finish_time": lambda r: f"{r.randint(2, 5)}:{r.randint(0, 59):02}:{r.randint(0, 59):02}", "country": of("Kenya", "Ireland", "Ecuador", "Vietnam")},
         ("{runner} ({country}), bib number {bib_number}, crossed the line in {finish_time}.", "Bib {bib_number}: {runner}, {country}, finish time {finish_time}", "The marathon was over for {runner} from {country} after {finish_time}; the bib number was {bib_number}.")),
        ({"email": _email, "plan": of("Basic", "Family", "Team", "Studio"), "expires": _date},
         ("The {plan} plan of {email} expires on {expires}.", "Account {email}, plan: {plan}, expires {expires}", "I'm on the {plan} plan (my email is {email}), and I see that it expires on {expires}. Can I extend it?")),
    ),
    pulls=(
        "Read this note and give it back as JSON with {f}.\n\n{t}", "{t}\n\nJSON with {f}, please.", "I need {f} from this, formatted as JSON: {t}", "Respond with one JSON object and nothing else. Keys: {f}\n---\n{t}",
        "Make a JSON object from the next line. It should have {f}.\n{t}", "Message:\n{t}\n\nWanted fields: {f}\nFormat: JSON", "Find {f} in the following and write them as JSON.\n\n{t}", "Get {f} out of \"{t}\" and put them into JSON.",
        "JSON format: {s}\nDocument: {t}", "{t}\n\nPut the text above into this structure: {s}",
    ),
    classes={
        "review": {
            "thumbs_up": ("The shoes fit perfectly and look great", "Easy to set up and works like a charm", "I would buy this again in a heartbeat", "Excellent quality for the price", "My wife loves her new bag", "Very comfortable chair, highly recommended", "Arrived early and exactly as described", "The best headphones I have ever had", "Beautiful colours and soft fabric", "The kids play with it every day, money well spent"),
            "thumbs_down": ("Fell apart after two washes", "The zip got stuck on the first day", "Looks nothing like the picture", "Waste of money, do not buy", "The battery lasts only one hour", "Too small and the seams are crooked", "It smells of plastic and I sent it back", "The manual is useless and a screw was missing", "Very poor sound, I expected much more", "Stopped working after a week"),
        },
        "triage": {
            "bug report": ("The save button does nothing when I click it", "Export fails with a blank page", "Dates are shown in the wrong order", "The app closes by itself on my phone", "Search finds no results even for my own name", "After the update all my photos are gone", "The total at the bottom is off by one", "Scrolling makes the text flicker", "I get logged out every five minutes", "The map is upside down on tablets"),
            "feature request": ("Please add a dark mode", "It would be nice to sort by date", "Could you support more languages?", "I wish I could print my notes", "An option to undo would be great", "Let us upload several files at once", "Can you add a calendar view?", "We would love to see keyboard shortcuts", "How about a widget for the home screen?", "Please let me change the font size"),
            "kind words": ("Fantastic app, it saves me hours", "Love the new design", "You guys are doing a great job", "This is the most useful tool on my phone", "Simple, fast and pretty, thank you", "I recommend it to all my colleagues", "The latest version is brilliant", "Best note app out there", "It just works, well done", "Five stars from me and my family"),
        },
        "urgency": {
            "act_now": ("There is water coming through the ceiling", "The alarm is ringing and nobody can stop it", "I smell gas in the kitchen", "A child is stuck in the lift", "The server room is on fire", "The patient has stopped breathing", "All tills are down and the shop is full", "Somebody is breaking into the house", "The truck leaves in ten minutes without the papers", "The freezer has failed and the vaccines are getting warm"),
            "can_wait": ("The hallway could do with new paint", "Could you look at the squeaky chair some time?", "The poster in the lobby is out of date", "We should order more pens next month", "One of the plants looks a bit dry", "The clock in room four is two minutes slow", "I would like a second monitor one day", "The coffee could be a little stronger", "Let us think about a new logo next year", "The curtains are not the nicest"),
        },
        "newsroom": {
            "finance desk": ("Shares fell sharply after the bank's report", "The central bank raised interest rates", "Inflation slowed for the third month", "The airline posted a record profit", "Oil prices climbed again on Friday", "The carmaker will cut two thousand jobs", "Investors worry about rising debt", "The startup was sold for a billion dollars", "Exports grew more than expected", "The pound lost value against the dollar"),
            "politics desk": ("The party lost its majority in parliament", "Two million people voted on Sunday", "The senator will run for president", "The minister resigned after the scandal", "The mayor won a second term", "Turnout was lower than four years ago", "Both candidates met for a debate on television", "The opposition wants a recount of the votes", "Parliament passed the law by two votes", "The governor promised lower taxes in her campaign"),
            "showbiz desk": ("The actress won her first award", "The band announced a world tour", "The film opens in cinemas next week", "The singer married in secret", "Critics loved the new comedy", "The series will have a third season", "The director is shooting in Morocco", "Fans queued all night for the premiere", "The star sold her villa in the hills", "The festival opened with a musical"),
        },
        "aisles": {
            "footwear": ("Waterproof hiking boots for men", "Red sandals with a low heel", "Running shoes, size 43", "Warm slippers made of felt", "Black leather boots with laces", "Canvas sneakers in white", "Rubber boots for children", "Ballet shoes with ribbons", "Football boots with studs", "Wooden clogs from Holland"),
            "office supplies": ("Pack of twelve blue pens", "A notebook with squared paper", "Stapler with a thousand staples", "Coloured pencils in a tin", "Envelopes with a window, A4", "Sticky notes in four colours", "Ring binder, two holes", "Rubber and sharpener set", "Fountain pen with black ink", "A ruler of thirty centimetres"),
            "cookware": ("Cast iron frying pan", "Set of three saucepans with lids", "A whisk made of steel", "Non-stick baking tray", "Pressure cooker, six litres", "Wok with a wooden handle", "Chopping board of oak", "Casserole dish for the oven", "Sharp chef's knife", "A ladle and two spatulas"),
        },
        "inbox": {
            "phish": ("Your account will be closed unless you confirm your password here", "We noticed a strange login, click the link to verify your card", "You inherited three million, send us your bank details", "Your parcel is on hold, pay a small fee at this link", "Tax refund waiting: enter your card number", "Final warning, update your payment data now", "Dear customer, your mailbox is full, log in here to keep it", "The boss needs gift cards at once, send me the codes", "Your phone has a virus, download this cleaner", "Verify your identity within 24 hours or lose access"),
            "legit": ("Attached are the slides from yesterday's talk", "Could we move our call to Friday morning?", "Thanks for dinner, we had a lovely evening", "The plumber is coming tomorrow at nine", "Here is the recipe you asked for", "The team lunch is booked for noon", "I read your draft and left some comments", "Our flight lands at six, can you pick us up?", "The school trip costs twelve euros per child", "Minutes of the board meeting are in the folder"),
        },
        "smart home": {
            "light control": ("Switch on the light in the hall", "Make it brighter in here", "Dim the bedroom lamp", "It's too dark in the kitchen", "Turn the porch light off", "Set the lamp to warm white", "Lights out, please", "Blink the lights when the doorbell rings", "The light over the table is too bright", "Give me some light on the stairs"),
            "heating and cooling": ("It's freezing in the living room", "Turn the heating down at night", "Make the bedroom warmer", "Start the air conditioning", "I'm too hot", "Set the temperature to 21 degrees", "The bathroom should be warm at seven", "Cool the office before lunch", "Turn off the radiator", "Why is it so cold in here?"),
            "audio": ("Play some jazz", "Turn up the volume", "Skip this song", "Put on the news on the radio", "Pause the music", "Play the next episode of my podcast", "What song is this?", "It's too loud, turn it down", "Repeat that track", "Play lullabies in the nursery"),
        },
        "hotel": {
            "housekeeping": ("There was hair in the shower", "The sheets had stains on them", "The bathroom was spotless", "Dust everywhere under the bed", "The towels smelled fresh and clean", "I found a cockroach in the sink", "The carpet was filthy", "The maid cleaned the room every day", "Mould on the bathroom tiles", "The toilet had not been cleaned"),
            "surroundings": ("Only five minutes to the beach", "Right next to the metro station", "Far away from the old town", "The airport is just around the corner", "It's in a quiet street near the park", "You need a car to get anywhere", "All the sights are in walking distance", "The hotel is on a noisy main road", "There are many shops nearby", "It took us an hour to get to the centre"),
            "food & drink": ("The breakfast buffet was huge", "Cold eggs and stale bread", "Great coffee and fresh fruit in the morning", "The restaurant serves wonderful fish", "Dinner was overpriced and bland", "There was nothing for vegetarians", "The chef made us a cake", "The bar has good cocktails", "We waited an hour for our soup", "The croissants were delicious"),
        },
        "when": {
            "already_happened": ("We moved here ten years ago", "She finished the book last night", "The shop closed in March", "I ate too much at lunch", "They painted the fence yesterday", "He broke his arm as a child", "Our team lost on Saturday", "The train left an hour ago", "I met her at a party", "Last summer we went to Spain"),
            "yet_to_come": ("We will move next spring", "She is going to study law", "The shop opens in two weeks", "I'll cook something tonight", "They are going to paint the fence tomorrow", "He will see the doctor on Monday", "Our team plays again on Saturday", "The train will leave in an hour", "I'm going to meet her later", "Next summer we will go to Spain"),
        },
        "hr": {
            "time off": ("How many holidays do I have left?", "I would like to take Friday off", "Can I carry over my vacation days?", "I am ill and will stay at home today", "Is the day after Christmas a holiday?", "I want to take two weeks of leave in July", "Who approves my vacation?", "My child is sick, may I stay home?", "I need a day off for moving", "Can I get unpaid leave for a trip?"),
            "payslips": ("My salary has not been paid yet", "When do we get the bonus?", "There is a mistake on my pay slip", "How are extra hours paid?", "I have a new bank account for my salary", "Why was so much tax taken from my pay?", "Will I get a raise this year?", "Please send me the pay slip for May", "How much do trainees earn?", "The allowance for travel is missing on my slip"),
            "recruiting": ("We need two more developers", "Please post the job ad online", "The applicant can come for an interview on Tuesday", "Here is my CV for the open position", "How many people applied?", "She turned down our offer", "Is the job as a driver still open?", "Invite the three best candidates", "I know someone who would fit the vacant post", "When will I hear back about my application?"),
        },
        "feelings": {
            "uneasy": ("I can't sleep before the exam", "What if I lose my job?", "My hands shake when I have to speak", "I hope nothing happened to her", "I keep thinking the plane will crash", "I'm scared of the operation", "The news makes me nervous", "She still hasn't called and I fear the worst", "I worry about my mother all the time", "My stomach hurts when I think of Monday"),
            "pride": ("My daughter won the race", "I built this table all by myself", "We finished the project before everyone else", "I passed with top marks", "My painting hangs in the town hall", "Our little village won the prize", "I ran my first marathon", "He learned to swim and I taught him", "Look what I made!", "After years of work my book is in the shops"),
            "lonesome": ("Nobody came to my birthday", "I eat alone every evening", "Since she left the house is so quiet", "I have no one to talk to", "All my friends have moved away", "I miss my family so far from home", "The phone never rings", "I spent Christmas on my own", "In the new city I don't know a soul", "Everyone is out and I sit here by myself"),
        },
        "timetable": {
            "chem": ("Acids turn the paper red", "Mix the powder with water and heat it", "Salt is made of sodium and chlorine", "The gas burns with a blue flame", "Atoms share electrons in a bond", "Iron rusts in damp air", "Wear goggles when you pour the acid", "Balance the equation of the reaction", "Oxygen is a gas without smell", "The liquid boils at eighty degrees"),
            "geog": ("The river flows into the Black Sea", "The desert covers half of the country", "The mountain range runs from north to south", "Draw a map of the island", "The capital lies on the coast", "Monsoon rains fall from June on", "The volcano is on a border of two plates", "Name the five oceans", "The valley was shaped by a glacier", "Which countries share a border with Chad?"),
            "hist": ("The king was beheaded in 1649", "The Romans built a wall across the north", "The war ended with a treaty", "The revolution began with a storm on a prison", "Pharaohs were buried in pyramids", "The queen ruled for sixty years", "Vikings raided the monasteries", "The empire fell in the fifth century", "Columbus crossed the Atlantic", "Slavery was abolished after the civil war"),
        },
    },
    shapes=(("Sentence: ", "\nTag:", "\n\n"), ("Comment: ", "\nVerdict:", "\n\n"), ("", " -- ", "\n"), ("Message: ", "\nQueue:", "\n\n"), ("* ", " --> ", "\n"), ("", ": ", "\n"), ("Note: \"", "\"\nKind:", "\n\n"), ("[text] ", " [label] ", "\n")),
    heads=("", "Label the last one like the others.\n\n", "Possible answers: {labels}\n\n", "Sort these for me.\n\n", "I started this list, please go on.\n\n"),
    told=(
        (_person, ("My friends call me {v}.", "{v} here, nice to talk to you.", "{v} is what everybody calls me."), ("Could you tell me my own name?", "What does everybody call me?", "What was my name, do you remember?")),
        (_pet, ("My hamster answers to {v}.", "We named our hamster {v}.", "There's a hamster in my room and his name is {v}."), ("What did we name the hamster?", "What's our hamster called?", "Tell me the hamster's name.")),
        (_person, ("I have a brother, his name is {v}.", "{v} is my little brother.", "My brother {v} is coming to visit."), ("What's my brother called?", "What's the name of my brother?", "Who is my brother?")),
        (_place, ("I moved to {v} last year.", "We live in {v} these days.", "My flat is in {v} now."), ("What city do I live in these days?", "And where was my flat again?", "In what city is my home?")),
        (reference, ("The alarm code is {v}.", "To switch off the alarm you type {v}.", "They changed our alarm code to {v}."), ("What's the code for the alarm?", "Which code do I type for the alarm?", "I forgot the alarm code. What is it?")),
        (reference, ("My booking number is {v}.", "The hotel gave me booking number {v}.", "The booking has the number {v}."), ("What's my booking number?", "Could you repeat the booking number?", "Which number does my booking have?")),
        (integer(102, 890), ("I'm staying in room {v}.", "They gave me room {v}.", "My room is number {v}."), ("Which room am I staying in?", "What's my room number?", "What room did they give me?")),
        (of("mushrooms", "olives", "beetroot", "anchovies"), ("Ugh, {v}, I can't stand them.", "No {v} for me, I don't like them.", "I never eat {v}."), ("Which food can't I stand?", "What do I never eat?", "What food don't I like?")),
        (of("cello", "trombone", "ukulele", "bassoon"), ("I play the {v} in a small band.", "I've been learning the {v} since school.", "On Sundays I practise the {v}."), ("Which instrument did I say I play?", "What instrument is it that I play?", "Which instrument do I practise?")),
        (of("paramedic", "florist", "surveyor", "tailor"), ("I'm a {v} by trade.", "I work nights as a {v}.", "I got hired as a {v} this spring."), ("What do I work as, do you know?", "What was it that I do for work?", "What job did I tell you I have?")),
        (of("February", "August", "November", "October"), ("My birthday is in {v}.", "I have my birthday in {v}.", "I'll turn forty in {v}."), ("In which month is my birthday?", "Which month was I born in?", "When do I celebrate my birthday?")),
        (of("Monday", "Wednesday", "Sunday"), ("The essay is due on {v}.", "I have to hand in my essay on {v}.", "My teacher wants the essay by {v}."), ("When is my essay due?", "By which day do I have to finish the essay?", "What day did I say for the essay?")),
        (of("Skoda", "Subaru", "Peugeot", "Volvo"), ("The {v} in front of the house belongs to me.", "My car is an old {v}.", "We bought a {v} last month."), ("Do you recall my car's brand?", "Which car do I have?", "Tell me the make of that car of mine")),
    ),
    nods=("Got it.", "Thanks for telling me.", "Understood."),
    fillers=(("lovely weather today", "That is nice to hear."), ("Thanks!", "You are welcome."), ("give me a second", "Take your time."), ("hmm, okay", "All right."), ("good morning by the way", "Good morning!")),
    passages=(
        ("{a} opened a bicycle shop on {s} in {m}. {b} repairs the bikes and {c} looks after the till. They close at {t}.",
         (("Who repairs the bikes?", "{b}"), ("Which street is the bicycle shop on?", "{s}"), ("At what time do they close?", "{t}"), ("Who looks after the till?", "{c}"), ("Who opened the shop?", "{a}"), ("In which month did the shop open?", "{m}"))),
        ("The choir of {p} has {n} members. {a} leads the rehearsals, which start at {t} every {d}. {b} plays the piano.",
         (("How many members does the choir have?", "{n}"), ("Who plays the piano?", "{b}"), ("When do rehearsals start?", "{t}"), ("Who leads the rehearsals?", "{a}"), ("On which day does the choir meet?", "{d}"))),
        ("{a} planted an apple tree and {b} planted a cherry tree. {c} waters both of them. The first fruit was picked in {m}.",
         (("Who planted the cherry tree?", "{b}"), ("Who planted the apple tree?", "{a}"), ("Who waters the trees?", "{c}"), ("When was the first fruit picked?", "{m}"))),
        ("Dear neighbours, the lift at {s} will be repaired on {d}. If you need help with your shopping, call {a}. The key to the cellar is with {b}. It will take {n} hours.",
         (("When is the lift being repaired?", "{d}"), ("Who can you call for help with shopping?", "{a}"), ("Who has the cellar key?", "{b}"), ("How many hours will the repair take?", "{n}"))),
        ("The ferry to {p} leaves at {t} and needs {n} minutes. It does not run on {d}. {a} is the captain, and {b} sells the tickets.",
         (("Where does the ferry go?", "{p}"), ("When does the ferry leave?", "{t}"), ("Who is the captain?", "{a}"), ("How many minutes does the crossing take?", "{n}"), ("On what day is there no ferry?", "{d}"), ("Who sells the tickets?", "{b}"))),
        ("In {m} we drove to {p}. {a} fell into the river there, and {b} lent out some dry clothes. {c} took pictures. The hotel cost {n} euros a night.",
         (("Who fell into the river?", "{a}"), ("Who lent the clothes?", "{b}"), ("Who took pictures?", "{c}"), ("What was the price of the hotel per night?", "{n}"), ("Where did they drive?", "{p}"))),
        ("Notes from {d}: {a} was late. {b} talked about the new office in {p}. {c} will write to the bank. Next time we start at {t}.",
         (("Who was late?", "{a}"), ("Who will write to the bank?", "{c}"), ("Where is the new office?", "{p}"), ("Who talked about the office?", "{b}"), ("When do they start next time?", "{t}"))),
    ),
    facts={"s": _street, "d": of("Tuesday", "Thursday", "Saturday"), "p": _place, "t": _time, "n": integer(12, 95), "m": of(*MONTHS)},
    reads=("{p}\n\nMy question about it: {q}", "I have a question about a text. {q}\n\n\"{p}\"", "This is what it says:\n{p}\n\n{q} Keep it short.", "{p} {q}", "Have a look at this and tell me: {q}\n\n{p}"),
    chats=(
        (("Hello from Norway!", "Hi, is this thing on?", "good day to you, assistant", "Hey, how do I start?", "hi there, just trying this out", "Hi! First time here.", "morning, are you up?", "Hi, it's me again"), f"{HELLO}|help you"),
        (("Thanks a bunch, I got it now", "that was really helpful", "thank you so very much!", "Super, thanks for the quick answer", "many thanks indeed", "thanks, you saved my day"), r"welcome|pleasure|glad|any time|happy to"),
        (("Gotta run, bye", "I'm off to bed", "ok I'm leaving now", "I'll come back another time, bye", "that would be it from my side, goodbye", "I'm done here, see you around"), r"bye|see you|good night|later|take care|sleep well"),
        (("Hm, who is this I'm writing with?", "Is there a person on the other end?", "What's your name, by the way?", "Which model is running here?", "Are you made by Google?", "I'd like to know who I'm talking to"), r"banyan|pocket|model"),
        (("How can you be of use to me?", "So what are you actually good at?", "Show me what you can do", "I don't know what I could use you for", "What's the point of you?", "Could you give me some ideas what you're for?"), r"tools|json|label|remember|help"),
        (("Did you have a nice day so far?", "hope you're doing well", "How do you feel this morning?", "Are you alright in there?", "how are things with you today?"), r"\b(well|fine|good|great|all right|nice|yes)\b"),
        (("How many legs does a spider have?", "Who painted the Mona Lisa?", "What language do they speak in Brazil?", "When did the Titanic sink?", "how far away is the moon", "What does DNA stand for?", "Who invented the telephone?", "What's the largest ocean?"), NO_IDEA),
        (("What time is it in Tokyo right now?", "Write a birthday card for my aunt", "Sing something for me", "What's on TV tonight?", "Can you recommend a good book?", "Draw a cat", "Summarize the latest news for me", "How do I lose weight?"), NO_IDEA),
        (("I think you got that one wrong", "This isn't what I asked for", "You don't understand me at all", "that makes no sense to me at all", "What a bad answer, try harder"), r"sorry|apolog|mistake"),
        (("I'm starting to like you", "You're pretty clever", "wow, impressive", "You are a big help", "that was quick, bravo"), r"thank|glad|happy|kind|welcome"),
        (("It's a pleasure to make your acquaintance", "Happy to meet you", "so nice meeting you"), r"\b(meet you|meeting you|pleasure|pleased|hello|likewise|too)\b"),
        (("When is my birthday?", "How many children have we got?", "What did I tell you yesterday?", "Where did my parents marry?", "By which name do I know my boss?", "How old did I get this year?"), f"{NO_IDEA}|not told|have not|haven't"),
    ),
)  # fmt: skip
