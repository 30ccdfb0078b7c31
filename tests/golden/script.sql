-- What Debezium is shown, and then Tailrace: `make golden` records the first, the tests compare the second.
-- The part before the first step runs before anything captures; then each step is one transaction, in order.

CREATE TYPE public.mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN public.price AS numeric(10, 2);
CREATE TYPE public.pair AS (a integer, b text);

CREATE TABLE public.customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email varchar(80),
    balance numeric(12, 2),
    created_at timestamptz,
    tags text[],
    profile jsonb,
    biography text
);
ALTER TABLE public.customers ALTER COLUMN biography SET STORAGE EXTERNAL;

CREATE TABLE public.order_items (
    line smallint,
    order_id integer,
    quantity integer,
    unit_price public.price,
    PRIMARY KEY (order_id, line)
);

CREATE TABLE public.full_rows (
    id uuid PRIMARY KEY,
    note text,
    document text
);
ALTER TABLE public.full_rows ALTER COLUMN document SET STORAGE EXTERNAL;
ALTER TABLE public.full_rows REPLICA IDENTITY FULL;

CREATE TABLE public.all_types (
    id integer PRIMARY KEY,
    a_smallint smallint, a_bigint bigint, a_real real, a_double double precision, a_numeric numeric,
    a_boolean boolean, a_char char(4), a_text text, a_bytea bytea,
    a_date date, a_time time, a_timetz timetz, a_timestamp timestamp, a_timestamptz timestamptz,
    a_timestamptz3 timestamptz(3), an_interval interval,
    a_uuid uuid, a_json json, a_jsonb jsonb, an_xml xml, a_money money,
    a_bit1 bit(1), a_bit12 bit(12), a_varbit varbit,
    an_inet inet, a_cidr cidr, a_macaddr macaddr, a_point point, a_tsvector tsvector,
    an_int4range int4range, a_daterange daterange, a_multirange int4multirange,
    some_integers integer[], some_texts text[], some_numerics numeric(8, 3)[], some_timestamps timestamptz[],
    a_mood public.mood, some_moods public.mood[], a_price public.price, a_pair public.pair
);

CREATE TABLE public."Mixed Case" (
    "Id" integer PRIMARY KEY,
    "a ""quoted"" name" text
);

-- step: insert
INSERT INTO public.customers VALUES
    (1, 'Ada', 'ada@example.org', 10.50, '2024-02-29 12:34:56.789012+02', '{a,"b c",NULL}', '{"vip": true}', NULL);

-- step: insert with nulls
INSERT INTO public.customers (id, name) VALUES (2, '');

-- step: two rows and two tables in one transaction
INSERT INTO public.customers (id, name, balance) VALUES (3, 'Grace', 0), (4, 'Edsger', -1.00);
INSERT INTO public.order_items VALUES (1, 700, 2, 9.99), (2, 700, 1, 0.10);

-- step: update
UPDATE public.customers SET balance = balance + 1, profile = NULL WHERE id = 1;

-- step: update that changes nothing
UPDATE public.customers SET name = name WHERE id = 4;

-- step: one row changed twice in one transaction
UPDATE public.customers SET name = 'Grace H.' WHERE id = 3;
UPDATE public.customers SET name = 'Grace Hopper' WHERE id = 3;

-- step: primary key change
UPDATE public.customers SET id = 40 WHERE id = 4;

-- step: part of a composite key changes
UPDATE public.order_items SET line = 3, quantity = 5 WHERE order_id = 700 AND line = 2;

-- step: delete
DELETE FROM public.customers WHERE id = 2;

-- step: delete and insert again in one transaction
DELETE FROM public.order_items WHERE order_id = 700 AND line = 1;
INSERT INTO public.order_items VALUES (1, 700, 20, 19.99);

-- step: insert a value that is stored out of line
INSERT INTO public.customers (id, name, biography) VALUES (5, 'Donald', repeat('tex ', 1000));

-- step: update leaves the out-of-line value alone
UPDATE public.customers SET name = 'Donald K.' WHERE id = 5;

-- step: replica identity full, insert
INSERT INTO public.full_rows VALUES
    ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'first', repeat('doc ', 1000)),
    ('b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'second', NULL);

-- step: replica identity full, update
UPDATE public.full_rows SET note = 'second, changed' WHERE id = 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11';

-- step: replica identity full, update leaves the out-of-line value alone
UPDATE public.full_rows SET note = 'first, changed' WHERE id = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11';

-- step: replica identity full, primary key change
UPDATE public.full_rows SET id = 'c0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' WHERE note = 'second, changed';

-- step: replica identity full, delete
DELETE FROM public.full_rows WHERE id = 'c0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11';

-- step: every type
INSERT INTO public.all_types VALUES (
    1, -5, 9007199254740993, 1.1, 100, 12345678901234567890.10,
    true, 'ab', E'a"b\\c\nd\té\u2028😀', '\x00ff10',
    '2024-02-29', '12:34:56.789', '12:34:56.789+05:30', '2024-02-29 12:34:56.7', '2024-02-29 12:34:56.7+00',
    '2024-02-29 12:34:56.7+00', '1 year -2 mons 3 days -04:05:06.789',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":  1}', '{"a":  1}', '<a>b</a>', -1234.56,
    B'1', B'000000000101', B'00101',
    '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', '(1.5,2)', '''a'':1 ''b'':2',
    '[1,5)', '[2024-01-01,2024-01-05)', '{[1,3),[5,7)}',
    '{1,NULL,3}', '{"a,b","NULL",NULL,""}', '{1.1,2}', '{2024-02-29 12:34:56+00}',
    'happy', '{sad,happy}', 7, ROW(1, 'x "y"')
);

-- step: every type, all null
INSERT INTO public.all_types (id) VALUES (2);

-- step: every type, values at the edges
INSERT INTO public.all_types (id, a_smallint, a_bigint, a_real, a_double, a_numeric, a_text, a_bytea,
    a_date, a_time, a_timestamp, a_timestamptz, an_interval, some_integers, some_texts)
VALUES (3, -32768, -9223372036854775808, 'NaN', '-Infinity', 'NaN', '', '',
    'infinity', '24:00:00', '-infinity', '0044-03-15 12:00:00 BC', '0', '{{1,2},{3,4}}', '[0:1]={a,b}');

-- step: every type, update
UPDATE public.all_types SET a_text = 'changed' WHERE id = 1;

-- step: quoted identifiers
INSERT INTO public."Mixed Case" VALUES (1, 'one');

-- step: a savepoint is rolled back
INSERT INTO public.customers (id, name) VALUES (6, 'kept');
SAVEPOINT before;
INSERT INTO public.customers (id, name) VALUES (7, 'rolled back');
ROLLBACK TO SAVEPOINT before;
INSERT INTO public.customers (id, name) VALUES (8, 'kept too');

-- step: truncate
TRUNCATE public.order_items;

-- step: insert after truncate
INSERT INTO public.order_items VALUES (1, 701, 1, 1.00);
