"""Clauses for texts about records and deeds; `everyday` combines them in any number and order.

A text is a subject with some of its facets, so two texts of a kind need not share a sentence.
"""

# Phrases are long lines.
# ruff: noqa: E501, SIM905

from typing import NamedTuple


class Facet(NamedTuple):
    """A value that a text can state about a subject, and phrases for it. `_facet` takes phrases separated by `;`.

    keys: names of the field. maker: how the value is drawn. predicates: phrases after the subject. posts: phrases right
    beside the subject. labels: words before the bare value. fronts: phrases that open a sentence.
    """

    keys: tuple[str, ...]
    maker: str
    predicates: tuple[str, ...]
    posts: tuple[str, ...]
    labels: tuple[str, ...]
    fronts: tuple[str, ...]


class Group(NamedTuple):
    """Subjects of one sort and their facets. pronouns: words for the subject in later sentences."""

    keys: tuple[str, ...]
    maker: str
    subjects: tuple[str, ...]
    pronouns: tuple[str, ...]
    facets: tuple[Facet, ...]


class Pair(NamedTuple):
    """Two values of the same sort, told apart by their roles in a statement."""

    maker: str
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    statements: tuple[str, ...]


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


def _facet(keys: str, maker: str, predicates: str, posts: str, labels: str, fronts: str = "") -> Facet:
    return Facet(tuple(keys.split()), maker, _parts(predicates), _parts(posts), _parts(labels), _parts(fronts))


def _group(keys: str, maker: str, subjects: str, pronouns: str, *facets: Facet) -> Group:
    return Group(tuple(keys.split()), maker, _parts(subjects), _parts(pronouns), facets)


# fmt: off
# facets of any event
_DATE = _facet("date day on_date when held_on scheduled", "when", "is [set for|planned for|on] {v};takes place on {v};was moved to {v};will be on {v}", "on {v};of {v};({v})", "date;when;day;on", "On {v}")
_TIME = _facet("time hour start_time starts_at begins clock", "clock", "starts at {v};begins at {v};is at {v};kicks off at {v};opens its doors at {v}", "at {v};, {v} sharp,;from {v}", "time;start;at;begins", "At {v};From {v} on")
_TOWN = _facet("city town place where location municipality", "place", "is in {v};takes place in {v};comes to {v};was moved to {v};happens in {v}", "in {v};at {v};({v})", "city;place;where;town", "In {v};Over in {v};Near {v}")
_PRICE = _facet("price cost amount costs how_much price_tag to_pay", "money", "costs {v} {unit};is {v} {unit};goes for {v} {unit};is priced at {v} {unit};sells at {v} {unit};can be had for {v} {unit};sets you back {v} {unit}", "for {v} {unit};at {v} {unit};({v} {unit});, {v} {unit},", "price;cost;only;now", "For {v} {unit};At {v} {unit}")
_NUMBER = _facet("id code reference number no ref key reg_no", "code", "has the number {v};is filed under {v};carries the code {v};is listed as {v};is marked {v}", "({v});, no. {v},;[{v}];number {v};, ref {v},", "ref;no.;code;number;id;#", "Under {v};As number {v}")

PEOPLE = (
    _facet("age years_old how_old age_in_years years", "age", "is {v};is {v} years old;turned {v};will soon be {v};is aged {v};has reached the age of {v};celebrated birthday number {v}", "({v});, {v},;, aged {v},;, {v} years old,;, now {v},", "age;aged;years", "At {v};Aged {v};At the age of {v}"),
    _facet("city town home_town lives_in home where location home_city", "place", "lives in {v};moved to {v};settled in {v};calls {v} home;has a flat in {v};is at home in {v};stays in {v};found a new home in {v};rents a room in {v};is now in {v};went to live in {v};resides in {v}", "from {v};of {v};in {v};({v});, {v},;out of {v}", "city;home;lives in;town;at", "In {v};Over in {v}"),
    _facet("job occupation work trade post career", "job", "works as [a|the] {v};is a {v};earns money as a {v};became a {v};trained as a {v};has been a {v} for long", ", {v},;, a {v},;({v});, our {v},", "job;work;trade;role", "As a {v}"),
    _facet("company employer firm works_for business organisation", "titled", "works for {v};is with {v};joined {v};is employed [at|by] {v};left {v};speaks for {v};has a desk at {v}", "of {v};from {v};({v});at {v};, {v},", "company;employer;firm;works for", "At {v};For {v}"),
    _facet("phone telephone tel mobile number phone_number call", "phone", "has the phone number {v};can be [called|rung|phoned] [on|at|under] {v};answers calls on {v};picks up at {v};is on {v}", "({v});, tel {v},;, phone {v},;, {v},", "phone;tel;tel.;mobile;call;ph.;T", ""),
    _facet("email mail e_mail address_mail contact write_to", "mail", "reads mail at {v};can be written to at {v};uses {v};writes from {v};has the address {v}", "({v});, {v},;, mail {v},", "email;mail;e-mail;write to", ""),
    _facet("street address road lives_at house street_address", "street", "lives [at|on] {v};has a house on {v};moved into {v};is at home at {v};can be visited at {v};gets post at {v}", ", {v},;of {v};({v});from {v}", "street;address;road;at", "At {v};On {v}"),
    _facet("salary pay wage earns income yearly_pay", "money", "earns {v} {unit};makes {v} {unit} a [month|week|year];is paid {v} {unit};gets {v} {unit} a month;takes home {v} {unit}", "({v} {unit})", "salary;pay;earns", "For {v} {unit} a month"),
    _facet("language speaks tongue mother_tongue spoken_language", "tongue", "speaks {v};talks {v} at home;grew up with {v};knows {v};is fluent in {v}", "(speaks {v});, a speaker of {v},", "language;speaks;tongue", ""),
    _facet("hobby pastime free_time interest likes leisure", "hobby", "loves {v};spends weekends with {v};is fond of {v};relaxes with {v};is keen on {v}", "(hobby {v})", "hobby;likes;free time", ""),
    _facet("spouse partner husband wife married_to", "person", "is married to {v};married {v};shares a home with {v};is the spouse of {v}", "(married to {v})", "spouse;partner;married to", ""),
    _facet("boss manager supervisor reports_to superior", "person", "reports to {v};works under {v};takes orders from {v};has {v} as boss", "(boss: {v})", "boss;manager;reports to", ""),
    _facet("joined since hired_on start_date first_day", "date", "joined on {v};has been with us since {v};started on {v};was hired on {v}", "(since {v});, with us since {v},", "since;joined;start", "Since {v};On {v}"),
    _facet("children kids n_children offspring", "small", "has {v} children;is a parent of {v};raised {v} kids;has {v} kids", "(parent of {v})", "children;kids", "With {v} children"),
    _facet("height height_cm size_cm tall", "height", "is {v} cm tall;measures {v} cm;stands {v} cm tall", "({v} cm);, {v} cm tall,", "height;cm", ""),
    _facet("pet dog cat companion", "pet", "walks a pet called {v};has a pet, {v};feeds {v}, the pet;owns a pet named {v}", "(pet: {v})", "pet;animal", ""))

GROUPED: tuple[Group, ...] = (
    _group(
        "name full_name person who called named", "person", "{s};{s};{s};[Meet|This is|We welcome] {s}, who;Our neighbour {s};{s} here, who", "[He|She]",
        *PEOPLE,
    ),
    _group(
        "name full_name who person contact", "person", "I am {s}, and I;My name is {s}. I;I'm {s} and I", "I",
        _facet("age years_old how_old years", "age", "am {v};am {v} years old;just turned {v};turned {v};will be {v}", "({v});, {v},;, aged {v},;, {v} years old,", "age;aged", ""),
        _facet("city town home_town lives_in home where", "place", "live in {v};moved to {v};come from {v};call {v} home;stay in {v};grew up in {v};found a flat in {v}", "from {v};in {v};({v});, {v},", "city;home;town", ""),
        _facet("job occupation work trade profession", "job", "work as a {v};am a {v};earn my money as a {v};became a {v}", ", {v},;, a {v},;({v})", "job;work", ""),
        _facet("company employer firm works_for", "titled", "work for {v};am with {v};joined {v};left {v}", "of {v};from {v};, {v},", "company;firm", ""),
        _facet("phone telephone tel mobile number call", "phone", "can be called on {v};answer calls on {v};have the number {v};pick up on {v}", "({v});, tel {v},", "tel;phone;mobile;call me", ""),
        _facet("street address road lives_at", "street", "live [at|on] {v};have a flat on {v};get my post at {v};moved into {v}", ", {v},;from {v}", "address;street", ""),
        _facet("hobby pastime interest likes", "hobby", "love {v};spend weekends with {v};am fond of {v}", "", "hobby;likes", ""),
        _facet("spouse partner married_to husband wife", "person", "am married to {v};married {v}", "", "spouse;partner", "")),
    _group(
        "event what occasion title name_of_event", "event", "The {s};The {s};Our {s};A {s};This {s};The great {s}", "It;It;The event",
        _DATE,
        _TIME,
        _TOWN,
        _PRICE,
        _facet("host organiser leader led_by run_by by_whom", "person", "is [led|run|held|hosted] by {v};is the work of {v};was set up by {v};has {v} as host", "by {v};with {v};(host: {v});under {v}", "host;led by;with", ""),
        _facet("venue hall building stage house", "titled", "is at the {v};fills the {v};takes over the {v};finds room in the {v}", "at the {v};in the {v};(at {v})", "venue;hall;at", "At the {v}"),
        _facet("seats places capacity room_for people guests", "count", "has {v} seats;holds {v} people;is for {v} people;has room for {v};takes {v} guests;seats {v}", "for {v} people;with {v} seats;({v} seats)", "seats;places", "For {v} people"),
        _facet("sponsor paid_by backer funder", "firm", "is paid for by {v};has {v} as sponsor;is brought to you by {v}", "(sponsor: {v})", "sponsor;backed by", "")),
    _group(
        "item product article thing goods what", "thing", "The {s};The {s};This {s};A {s};Our {s};Such a {s}", "It",
        _PRICE,
        _NUMBER,
        _facet("weight mass grams weighs heavy", "count", "weighs {v} [grams|kg|g|pounds];is {v} [grams|kilos] heavy;brings {v} grams to the scales", "of {v} [grams|kg|kilos];, {v} [g|grams],;({v} g)", "weight;weighs", "At {v} grams"),
        _facet("colour color hue shade", "colour", "is {v};comes in {v};is painted {v};has the colour {v};shines in {v}", "in {v};({v});, {v},", "colour;color", "In {v}"),
        _facet("material made_of stuff fabric", "material", "is made of {v};consists of {v};was cut from {v};is all {v}", "of {v};({v});in {v}", "material;made of", "Made of {v}"),
        _facet("maker brand producer made_by manufacturer firm", "firm", "is made by {v};comes from {v};was built by {v};is a product of {v}", "by {v};from {v};(maker: {v})", "maker;brand;by", "From {v}"),
        _facet("year built made_in_year model_year", "year", "was made in {v};dates from {v};was built in {v};first came out in {v}", "from {v};of {v};({v});, built {v},", "year;built;made", "In {v}"),
        _facet("stock in_stock left pieces quantity units", "count", "is in stock {v} times;is there {v} times;has {v} pieces left", "({v} left);, {v} in stock,", "stock;left;pcs", ""),
        _facet("seller shop sold_by vendor dealer store", "person", "is sold by {v};can be bought from {v};belongs to {v};is on offer from {v}", "(seller: {v})", "seller;sold by;ask for", ""),
        _facet("warranty_months guarantee months_of_warranty", "months", "has {v} months of warranty;is guaranteed for {v} months", "(warranty {v} months)", "warranty in months", "With {v} months of warranty"),
        _facet("rating stars score grade", "small", "got {v} stars;is rated {v};earns {v} out of ten", "({v} stars)", "rating;stars", "")),
    _group(
        "title work name called book film", "titled", "{s};{s};\"{s}\";The [book|film|song|play|opera] {s};'{s}'", "It;It;This one",
        _PRICE,
        _facet("creator made_by writer maker by written_by by_whom", "person", "was [written|made|created] by {v};is by {v};is a work of {v};comes from the pen of {v};was finished by {v}", "by {v};of {v};({v});from {v}", "by;creator;from", ""),
        _facet("year released published_in came_out dated out_in", "year", "came out in {v};appeared in {v};is from {v};was first seen in {v};was printed in {v};dates from {v}", "({v});of {v};from {v};, {v},", "year;out;released", "In {v};Back in {v}"),
        _facet("pages page_count n_pages leaves length", "count", "has {v} pages;runs to {v} pages;fills {v} pages;is {v} pages long;takes up {v} pages", ", {v} pages,;({v} pages);of {v} pages;, {v} pp.,", "pages;pp.;length", "On {v} pages;With {v} pages"),
        _facet("chapters parts n_chapters sections", "small", "has {v} chapters;is told in {v} chapters;has {v} parts", "in {v} chapters;({v} chapters)", "chapters;parts", "In {v} chapters"),
        _facet("genre kind_of_work style category", "genre", "is a {v};counts as {v};is pure {v}", ", a {v},;({v})", "genre;style", ""),
        _facet("publisher house press label printed_by", "firm", "was brought out by {v};is sold by {v};was printed by {v};is out with {v}", "({v});, {v},;from {v}", "publisher;press;label", "At {v}"),
        _facet("sold copies copies_sold sales", "count", "sold {v} copies;went over the counter {v} times", "({v} copies sold)", "copies sold;sales", "With {v} copies sold"),
        _facet("minutes runtime duration running_time minutes_long", "count", "lasts {v} minutes;runs {v} minutes;is over after {v} minutes;takes {v} minutes", ", {v} min,;({v} minutes);of {v} minutes", "minutes;runtime", "In {v} minutes")),
    _group(
        "dish meal recipe food what name", "dish", "The {s};The {s};My {s};Our {s};{s}", "It",
        _PRICE,
        _facet("minutes time duration takes cooking_time minutes_needed", "count", "takes {v} minutes;needs {v} minutes;is ready in {v} minutes;cooks for {v} minutes;is done after {v} minutes;must simmer for {v} minutes;wants {v} min on the stove", ", {v} minutes,;({v} min);in {v} minutes", "time in minutes;minutes;takes", "In {v} minutes;After {v} minutes"),
        _facet("people portions feeds guests eaters plates helpings", "small", "feeds {v};is for {v} people;fills {v} plates;makes {v} portions;gives {v} helpings", "for {v} people;({v} portions);, {v} helpings,;for {v}", "portions;feeds;people", "For {v} people"),
        _facet("main_ingredient ingredient made_with with", "food", "is made with {v};needs {v};is best with {v};contains {v}", "with {v};(with {v})", "with;main ingredient", "With {v}"),
        _facet("cook chef made_by by recipe_by", "first", "is cooked by {v};comes from {v}'s kitchen;was made by {v}", "by {v};(cook: {v})", "cook;by;chef", ""),
        _facet("calories kcal energy", "count", "has {v} calories;brings {v} kcal", "({v} kcal);with {v} calories", "kcal;calories", "With {v} calories"),
        _facet("degrees oven_temperature heat temperature", "heat", "bakes at {v} degrees;needs an oven of {v} degrees;goes in at {v} degrees", "({v} degrees);at {v} degrees", "oven;degrees", "At {v} degrees")),
    _group(
        "passenger guest_name flyer rider person name who", "person", "{s};{s};{s};The ticket of {s};[Mr|Ms] {s}", "[He|She|They]",
        _facet("destination to going_to arrives_in heading_for ends_in", "place", "flies to {v};goes to {v};is on the way to {v};heads for {v};travels to {v};wants to get to {v};lands in {v}", "to {v};for {v};-> {v};bound for {v};(to {v})", "to;destination;->", "Off to {v}:"),
        _facet("origin from leaves_from start departs_from", "place", "leaves from {v};starts in {v};sets off from {v};comes from {v}", "from {v};ex {v};(from {v})", "from;origin", "From {v}"),
        _facet("trip flight_no train service connection service_no", "code", "takes {v};is on {v};travels with {v};has a ticket for {v};boards {v}", "on {v};({v});with {v};, {v},", "service;flight;train;no.", "On {v};With {v}"),
        _facet("seat place seat_no chair seat_number", "seat", "has seat {v};sits in {v};got seat {v};is in {v};was given {v} as a seat", "(seat {v});, seat {v},;in seat {v}", "seat;place", "In seat {v}"),
        _facet("gate exit gate_no door", "gate", "boards at gate {v};waits at gate {v};must go to gate {v}", "(gate {v});, gate {v},", "gate", "At gate {v}"),
        _facet("departs departure time leaves_at takes_off", "clock", "leaves at {v};departs at {v};takes off at {v}", "at {v};({v})", "departs;dep.;leaves", "At {v}"),
        _facet("date day travel_date on_date", "when", "travels on {v};goes on {v};leaves on {v}", "on {v};({v})", "date;on", "On {v}"),
        _facet("fare price paid cost", "money", "paid {v} {unit};pays {v} {unit}", "for {v} {unit}", "fare;paid", "For {v} {unit}"),
        _facet("bags luggage pieces suitcases", "small", "has {v} bags;brings {v} suitcases;checks in {v} bags", "with {v} bags;({v} bags)", "bags;luggage", "With {v} bags")),
    _group(
        "bill invoice bill_no invoice_no document reference", "code", "[Bill|Invoice|Order|Statement] {s};[Bill|Invoice|Order] no. {s};{s};The [bill|invoice] {s};Our [order|bill] {s}", "It;It;This",
        _facet("total amount sum balance to_pay value", "money", "comes to {v} {unit};amounts to {v} {unit};is for {v} {unit};totals {v} {unit};asks for {v} {unit};makes {v} {unit}", "for {v} {unit};({v} {unit});of {v} {unit};, {v} {unit},", "total;amount;sum;to pay", "For {v} {unit}"),
        _facet("firm supplier issuer biller creditor sent_by from", "firm", "comes from {v};was sent by {v};is from {v};was written by {v};has to be paid to {v}", "from {v};of {v};by {v};({v})", "from;firm;issued by", "From {v}"),
        _facet("customer client debtor payer bill_to", "person", "is for {v};goes to {v};must be paid by {v};was sent to {v}", "for {v};to {v};(client {v})", "to;customer;client", "For {v}"),
        _facet("due_date deadline payable_by last_day pay_until by_when", "when", "is due [on|by] {v};must be paid by {v};is payable until {v};wants its money by {v};runs out on {v};falls due on {v}", ", due {v},;(due {v});, payable by {v},;until {v}", "due;deadline;pay by", "By {v};Before {v}"),
        _facet("items positions n_items lines", "count", "lists {v} items;has {v} lines;covers {v} pieces", "for {v} items;({v} items)", "items;lines", "With {v} items"),
        _facet("state status condition", "state", "is {v};is marked as {v};has the status {v}", "({v});, {v},", "status;state", "")),
    _group(
        "patient sick_person name case who", "person", "{s};{s};{s};Our patient {s};The patient {s}", "[He|She|They]",
        _facet("illness disease trouble suffers_from finding what_is_wrong", "ill", "has {v};suffers from {v};came in with {v};is down with {v};complains of {v};is in for {v};caught {v}", "with {v};({v});, {v},", "illness;finding;has;Dx", "With {v};Because of {v}"),
        _facet("physician medic treating_doctor seen_by treated_by cared_for_by", "doctor", "is seen by {v};is treated by {v};is under {v};was sent home by {v};is with {v};saw {v};waits for {v}", "(under {v});, seen by {v},;, patient of {v},", "seen by;doctor;treated by;GP", ""),
        _facet("room station bed unit floor room_no", "small", "is in room {v};lies in bed {v};is on unit {v};was taken to room {v}", "(room {v});, bed {v},;in room {v};on unit {v}", "room;bed;unit", "In room {v};On unit {v}"),
        _facet("admitted since came_in arrival_day in_since", "when", "came in on {v};was taken in on {v};has been here since {v}", "(since {v});, in since {v},", "since;admitted;in", "On {v};Since {v}"),
        _facet("medicine drug remedy takes pill", "drug", "takes {v};gets {v};was given {v};needs {v}", "(on {v});, on {v},", "takes;drug;Rx", "On {v}"),
        _facet("age years_old how_old years", "age", "is {v};is {v} years old;is aged {v}", "({v});, {v},;, aged {v},", "age", "")),
    _group(
        "company firm business name organisation employer", "firm", "{s};{s};{s};The firm {s};The company {s}", "It",
        _facet("founder founded_by started_by set_up_by owner", "person", "was founded by {v};was set up by {v};belongs to {v};was the idea of {v}", "of {v};(founder {v});by {v}", "founder;set up by", ""),
        _facet("seat town headquarters based_in city place", "place", "is based in {v};has its seat in {v};works out of {v};sits in {v};moved to {v}", "of {v};in {v};({v});from {v}", "seat;based in;town", "In {v};From {v}"),
        _facet("staff employees workers people headcount team_size", "count", "has {v} workers;employs {v} people;counts {v} heads;gives work to {v} people", "({v} people);with {v} workers", "staff;workers;people", "With {v} people"),
        _facet("founded since founding_year start_year established", "year", "was founded in {v};has existed since {v};opened in {v}", "(since {v});, founded {v},;(est. {v})", "since;founded;est.", "Since {v};In {v}"),
        _facet("turnover sales income revenue earned", "money", "earned {v} {unit} last year;had sales of {v} {unit};took in {v} {unit}", "({v} {unit} of sales)", "sales;turnover", "With sales of {v} {unit}"),
        _facet("phone telephone tel hotline call", "phone", "can be called on {v};answers {v};has the hotline {v}", "(tel {v});, phone {v},", "tel;phone;hotline", ""),
        _facet("makes product branch trade", "thing", "makes the {v};sells the {v};is known for the {v}", "(known for the {v})", "makes;product", "")),
    _group(
        "place town city name where settlement", "place", "{s};{s};The town of {s};Little {s};The village {s}", "It",
        _facet("people population inhabitants souls residents", "count", "has {v} inhabitants;counts {v} people;is home to {v} people;has {v} souls", "({v} people);with {v} inhabitants", "population;people", "With {v} people"),
        _facet("mayor head leader ruled_by run_by", "person", "is run by {v};has {v} as mayor;elected {v};is governed by {v}", "(mayor {v});under {v}", "mayor;run by", "Under {v}"),
        _facet("river stream water", "rare", "lies on the {v};was built on the {v};looks over the river {v}", "on the {v};(river {v})", "river;water", "On the {v}"),
        _facet("height altitude above_sea elevation", "count", "lies {v} metres above the sea;stands at {v} m", "({v} m)", "height;altitude", "At {v} metres"),
        _facet("founded year first_named old_since", "year", "was founded in {v};is first named in {v};goes back to {v}", "(founded {v})", "founded;since", "Since {v};In {v}"),
        _facet("postcode zip code zip_code post_code", "zip", "has the postcode {v};gets letters under {v}", "({v});, {v},", "zip;postcode", ""),
        _facet("fair_day market_day market day_of_market", "weekday", "has a market on {v};holds its market every {v}", "(market on {v})", "market day", "")),
)

# the first value acts on the second, or comes before it
PAIRS: tuple[Pair, ...] = (
    Pair(
        "team",
        (
            tuple("team side club first_team we us".split()),
            tuple("rival adversary enemy other_team against guests counterpart other_side".split())),
        (
            "{a} [met|faced|took on|hosted|were up against|lost to|drew with|came up against] {b}", "{a} [v|vs|vs.|versus|-|against] {b}", "[In the match|The game] {a} [vs|against] {b}", "It was {a} against {b}", "{a} had {b} as [guests|rivals]", "[Coach|Captain|Goals] for {a} in the game with {b}")),
    Pair(
        "person",
        (tuple("winner victor first champion beat".split()), tuple("loser beaten second runner_up defeated".split())),
        (
            "{a} beat {b}", "{a} defeated {b}", "{b} lost to {a}", "{b} was beaten by {a}", "{a} won against {b}", "{a} came in before {b}", "{b} was no match for {a}")),
    Pair(
        "person",
        (tuple("seller vendor from sold_by old_owner".split()), tuple("buyer customer to bought_by new_owner".split())),
        (
            "{a} sold a {n} to {b}", "{b} bought a {n} from {a}", "{b} paid {a} for a {n}", "the {n} went from {a} to {b}", "{a} took money from {b} for a {n}", "{b} is the new owner of {a}'s old {n}")),
    Pair(
        "person",
        (tuple("sender from writer sent_by author".split()), tuple("recipient to receiver addressee sent_to".split())),
        (
            "{a} wrote to {b}", "{a} sent {b} a {n}", "{b} got a {n} from {a}", "a letter from {a} reached {b}", "{b} opened the mail of {a}", "From: {a} To: {b}", "{a} -> {b}")),
    Pair(
        "person",
        (
            tuple("teacher trainer coach mentor taught_by".split()),
            tuple("pupil learner trainee student apprentice".split())),
        (
            "{a} teaches {b}", "{b} takes lessons with {a}", "{b} learns from {a}", "{a} trained {b}", "{b} was taught by {a}", "{a} has {b} as a pupil")),
    Pair(
        "person",
        (tuple("lender creditor lent_by owed_to".split()), tuple("borrower debtor owes lent_to".split())),
        (
            "{a} lent money to {b}", "{b} borrowed from {a}", "{b} owes {a} money", "{a} waits for the money of {b}", "{b} must pay {a} back")),
    Pair(
        "person",
        (
            tuple("boss manager employer head superior".split()),
            tuple("employee worker subordinate assistant helper".split())),
        (
            "{a} is the boss of {b}", "{b} works for {a}", "{b} reports to {a}", "{a} hired {b}", "{b} got a job with {a}", "{b} was fired by {a}")),
    Pair(
        "person",
        (tuple("host inviter householder".split()), tuple("guest visitor invited".split())),
        ("{a} invited {b}", "{b} stays with {a}", "{b} visits {a}", "{a} had {b} to dinner", "{b} was a guest of {a}")),
    Pair(
        "person",
        (tuple("parent mother father".split()), tuple("child kid son daughter".split())),
        ("{a} is the parent of {b}", "{b} is a child of {a}", "{a} raised {b}", "{b} was born to {a}")),
    Pair(
        "person",
        (tuple("caller phoned_by rang".split()), tuple("answered_by picked_up person_called".split())),
        ("{a} called {b}", "{a} rang {b} up", "{b} got a call from {a}", "{b} picked up when {a} called")),
    Pair(
        "person",
        (tuple("successor new_head replacement now".split()), tuple("predecessor old_head before former".split())),
        (
            "{a} replaced {b}", "{b} was followed by {a}", "{a} took over from {b}", "{b} handed over to {a}", "{a} follows {b} in office")),
    Pair(
        "person",
        (tuple("rescuer saver saved_by".split()), tuple("rescued helped saved person_saved".split())),
        (
            "{a} saved {b}", "{a} pulled {b} out of the water", "{b} was rescued by {a}", "{b} thanked {a} for the rescue")),
    Pair(
        "place",
        (tuple("from origin start departure leaves".split()), tuple("to destination end arrival reaches".split())),
        (
            "the trip goes from {a} to {b}", "{a} - {b}", "{a} to {b}", "we leave {a} for {b}", "the train from {a} ends in {b}", "to {b} from {a}", "{a} -> {b}", "we reach {b} after leaving {a}", "starting in {a}, we end up in {b}")),
    Pair(
        "date",
        (tuple("start from begins first_day starts".split()), tuple("end until ends last_day finish".split())),
        (
            "it runs from {a} to {b}", "{a} - {b}", "from {a} until {b}", "it begins on {a} and ends on {b}", "the {n} is open from {a} till {b}", "it ends on {b} after starting on {a}")),
    Pair(
        "clock",
        (tuple("opens start from begins opening".split()), tuple("closes end until ends closing".split())),
        (
            "it is open from {a} to {b}", "{a}-{b}", "{a} to {b}", "the {n} opens at {a} and closes at {b}", "it closes at {b} and opens at {a}", "from {a} until {b}")),
    Pair(
        "money",
        (tuple("old_price before was former_price".split()), tuple("new_price now reduced sale_price".split())),
        (
            "was {a}, now {b}", "down from {a} to {b}", "the {n} cost {a} before and costs {b} now", "now {b} instead of {a}", "the price of the {n} went from {a} to {b}")),
    Pair(
        "titled",
        (tuple("original first old_name".split()), tuple("sequel second new_name".split())),
        (
            "{a} was followed by {b}", "{b} came after {a}", "first there was {a}, then {b}", "{a} is now called {b}", "{b} used to be {a}")),
)
# phrases that may follow a pair
ENDINGS: tuple[Facet, ...] = (
    _facet("score result final_score outcome ended", "score", "", "with a result of {v};ending {v};({v});, {v},", "score;result", ""),
    _facet("date day when on_date", "when", "", "on {v};({v})", "date;on", ""),
    _facet("town place where city venue_town", "place", "", "in {v};over in {v};, {v},", "place;in", ""),
    _facet("amount sum money value", "money", "", "for {v} {unit};({v} {unit})", "amount;sum", ""),
    _facet("reference code id number", "code", "", "({v});, ref. {v},;under {v}", "ref;no.", ""),
    _facet("witness seen_by reporter told_by", "person", "", ", says {v},;, as {v} told us,;(report: {v})", "witness;reported by", ""),
    _facet("people spectators crowd watched_by", "count", "", "before {v} people;with {v} watching;({v} people there)", "people there;crowd", ""))
CURRENCIES = "euros euros dollars dollars pounds yen francs crowns pesos rupees bucks EUR USD GBP CHF SEK INR zloty lira kr quid dinars".split()
SIGNS = "$ € £ ¥ US$ EUR USD Rs".split()
# words before a name that are not part of it; honorifics are part of the name
CALLED = "Engineer Commuter Plumber Customer Neighbour Colleague Patient Driver Author Singer Painter Tenant Winner Farmer Lawyer Reporter Coach Guest Applicant Gardener Baker Actor Striker Pilot Donor Witness Suspect Student Pupil Teacher Client Member Volunteer Clerk Employee Trainee Visitor Shopkeeper".split()
HONORIFICS = "Dr. Dr. Dr Mr. Mr Mrs. Mrs Ms. Ms Miss Prof. Professor Sir Dame Rev. Father Sister Lady Lord Mx".split()
FIRMS = (
    "{a} & {b}", "{a} and {b}", "{a} & Co.", "{a} & Partners", "{a} Ltd", "{a} Inc.", "{a} GmbH", "{a} AG", "{a} Bros.", "{a} Holdings", "{a} & Daughters", "{a} Group", "{a}-{b}", "{a} {n} Co.", "{a} {n} Supplies", "The {a} {n} Company", "{a} plc", "{a} LLC", "{a}.io", "{a}", "{a}", "{n} {a}", "{n}{n2}", "{a}{n}s", "{n} & {n2}", "House of {a}", "Studio {a}", "Bank of {a}", "{a}'s {n}s")
TITLES = (
    "The {n}", "The {n} of {a}", "A {n}", "A {n} of {n2}", "An Old {n}", "The {n} and the {n2}", "{n} and {n2}", "{n} of the {n2}", "My {n}", "In the {n}", "The {n} in the {n2}", "Under the {n}", "{n} for {a}", "No {n} for {a}", "The Last {n2}", "Where the {n} Is", "{a}", "{a} and the {n}", "Two {n}s", "The {a} {n}", "{n}, {n2}", "{n} without a {n2}", "Red {n}", "A Silent {n}", "The Long {n}", "{a}'s {n}", "How to {n}", "From {n} to {n2}", "Eleven {n}s", "Dear {a}", "Goodbye, {n}", "{n} {n2}", "{n} {n2} {a}", "At {a}", "Never a {n}", "Winds over {a}")
STREETS = "Street Road Avenue Square Drive Gate Hill Way Court Terrace Crescent Place Boulevard Alley Park Quay Grove Gardens Yard Bridge Path St. Rd Ave Mews Rise Green View Wharf Passage Cross Field".split()

# --- deeds, for reading --------------------------------------------------------------------------------------------------

# verbs that mean the same here: base form, third person, past, participle
_VERBS = """head heads headed headed, manage manages managed managed, lead leads led led / fix fixes fixed fixed, repair repairs repaired repaired, mend mends mended mended / clean cleans cleaned cleaned, wash washes washed washed / paint paints painted painted / build builds built built, construct constructs constructed constructed / buy buys bought bought, purchase purchases purchased purchased
/ find finds found found, discover discovers discovered discovered / lose loses lost lost / carry carries carried carried / guard guards guarded guarded, protect protects protected protected / open opens opened opened, unlock unlocks unlocked unlocked / close closes closed closed, shut shuts shut shut / design designs designed designed, plan plans planned planned
/ break breaks broke broken, damage damages damaged damaged / write writes wrote written / sing sings sang sung / draw draws drew drawn / steal steals stole stolen / hide hides hid hidden / test tests tested tested, check checks checked checked / order orders ordered ordered / cook cooks cooked cooked / water waters watered watered / feed feeds fed fed / teach teaches taught taught / visit visits visited visited / drive drives drove driven
/ wear wears wore worn / choose chooses chose chosen, pick picks picked picked / own owns owned owned / sell sells sold sold / rent rents rented rented / throw throws threw thrown / count counts counted counted / photograph photographs photographed photographed / move moves moved moved / read reads read read / weigh weighs weighed weighed / sign signs signed signed / film films filmed filmed / burn burns burned burned / print prints printed printed / cut cuts cut cut
/ wrap wraps wrapped wrapped / forget forgets forgot forgotten / return returns returned returned / collect collects collected collected / invent invents invented invented / sponsor sponsors sponsored sponsored / judge judges judged judged / drop drops dropped dropped / store stores stored stored / polish polishes polished polished / tow tows towed towed / sharpen sharpens sharpened sharpened / translate translates translated translated"""
VERBS = tuple(tuple(tuple(v.split()) for v in group.split(",")) for group in _VERBS.replace("\n", " ").split("/"))
# base form, third person, past, participle of verbs that hand a thing to someone
GIFTS = tuple(
    tuple(v.split())
    for v in "hand hands handed handed/pass passes passed passed/mail mails mailed mailed/ship ships shipped shipped/offer offers offered offered/sell sells sold sold/show shows showed shown/promise promises promised promised/leave leaves left left/send sends sent sent/bring brings brought brought/give gives gave given/post posts posted posted/sing sings sang sung/throw throws threw thrown/read reads read read".split(
        "/"
    )
)
KEEPS = frozenset("show promise offer sing read".split())  # after these the receiver does not have the thing
# where, when and how a deed is done: phrases for it, questions about it
TAILS = {
    "d": (
        "on {d};every {d};last {d};each {d}", "On which day [do] {a} {v} the {i}?;When [do] {a} {v} the {i}?;[Which|What] day [do] {a} {v} the {i}[ on|]?;[Which|What] day is the {i} {vn}?;When is the {i} {vn}?"),
    "p": (
        "in {p};over in {p};near {p}", "Where [do] {a} {v} the {i}?;In [which|what] [place|town|city] [do] {a} {v} the {i}?;Where is the {i} {vn}?"),
    "t": (
        "at {t};before {t};around {t};after {t}", "At what time [do] {a} {v} the {i}?;When [do] {a} {v} the {i}?;What time [do] {a} {v} the {i}?"),
    "k": (
        "for {k} {unit};and got {k} {unit} for it", "For how much [do] {a} {v} the {i}?;How much was it for the {i}?;How much [do] {a} get for the {i}?;What sum goes with the {i}?"),
    "s": (
        "on {s};in {s};at {s}", "Where [do] {a} {v} the {i}?;On [which|what] street [do] {a} {v} the {i}?;[What|Which] street is the {i} on?;Where is the {i}?"),
    "b": (
        "with {b};together with {b};with the help of {b}", "With whom [do] {a} {v} the {i}?;Who [helps|joins] {a} with the {i}?;Who [do] {a} {v} the {i} with?"),
    "y": (
        "in {y};back in {y}", "In [which|what] year [do] {a} {v} the {i}?;When [do] {a} {v} the {i}?;What year was the {i} {vn}?"),
}
# fmt: on


def wording() -> str:
    """All words around the values of records and deeds."""
    return f"{GROUPED} {PAIRS} {ENDINGS} {CURRENCIES} {CALLED} {VERBS} {GIFTS} {TAILS}"
