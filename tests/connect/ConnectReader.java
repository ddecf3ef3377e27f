// Reads our messages with Kafka Connect's JsonConverter and Debezium's own classes, and tells
// exactly what it has read. One request per line of standard input, one answer per line of
// standard output, both JSON; bytes are base64. Python's side: reader.py.

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.debezium.bindings.kafka.KafkaDebeziumSinkRecord;
import io.debezium.config.CommonConnectorConfig;
import io.debezium.data.Envelope;
import io.debezium.data.VariableScaleDecimal;
import io.debezium.document.ArrayReader;
import io.debezium.relational.Column;
import io.debezium.relational.history.JsonTableChangeSerializer;
import io.debezium.relational.history.TableChanges;
import io.debezium.relational.mapping.MaskStrings;
import io.debezium.schema.SchemaFactory;
import io.debezium.schema.SchemaNameAdjuster;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.sql.Types;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.OffsetTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.ConnectSchema;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.header.Headers;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;

public final class ConnectReader {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final DateTimeFormatter DATE = DateTimeFormatter.ofPattern("uuuu-MM-dd");
    private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("HH:mm:ss.SSSSSS");
    private static final DateTimeFormatter TIMESTAMP =
            DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS").withZone(ZoneOffset.UTC);
    private static final Map<String, JsonConverter> CONVERTERS = new HashMap<>();
    private static final Map<String, Transformation<SinkRecord>> TRANSFORMS = new HashMap<>();
    private static final HeaderConverter SIMPLE_HEADERS = new SimpleHeaderConverter();
    private static final JsonConverter JSON_HEADERS = new JsonConverter();
    private static long offset;

    public static void main(String[] arguments) throws IOException {
        // What libraries write to standard output must not get into the answers.
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        BufferedReader requests =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        JSON_HEADERS.configure(Map.of("converter.type", "header"));  // and a worker's defaults
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode request = JSON.readTree(line);
                switch (request.get("do").asText()) {
                    case "read" -> read(request, answer);
                    case "headers" -> headers(request, answer);
                    case "table_changes" -> tableChanges(request, answer);
                    case "schemas" -> schemas(request, answer);
                    case "hash" -> hash(request, answer);
                    case "adjust" -> adjust(request, answer);
                    case "partition" -> answer.put("partition", BuiltInPartitioner.partitionForKey(
                            bytes(request.get("key")), request.get("partitions").asInt()));
                    case "heartbeat" -> heartbeat(answer);
                    default -> throw new IllegalArgumentException(line);
                }
            } catch (Exception | LinkageError error) {
                answer.removeAll();
                StringBuilder text = new StringBuilder();
                for (Throwable at = error; at != null; at = at.getCause()) {
                    text.append(text.isEmpty() ? "" : "; because of ").append(at);
                }
                answer.put("error", text.toString());
            }
            answers.println(answer);
        }
    }

    // ---- Messages

    /** Converts a message, checks it, writes it again, and sends it through transforms. */
    private static void read(JsonNode request, ObjectNode answer) throws IOException {
        String topic = request.get("topic").asText();
        JsonConverter keys = converter(true, request.get("key_schemas").asBoolean());
        JsonConverter values = converter(false, request.get("value_schemas").asBoolean());
        ConnectHeaders headers = new ConnectHeaders();
        for (Map.Entry<String, JsonNode> header : request.get("headers").properties()) {
            headers.add(header.getKey(), JSON_HEADERS.toConnectHeader(
                    topic, header.getKey(), bytes(header.getValue())));
        }
        SinkRecord record = record(topic, keys.toConnectData(topic, bytes(request.get("key"))),
                values.toConnectData(topic, bytes(request.get("value"))), headers);
        describe(record, answer);
        answer.put("written_key",
                text(keys.fromConnectData(topic, record.keySchema(), record.key())));
        answer.put("written_value",
                text(values.fromConnectData(topic, record.valueSchema(), record.value())));
        if (request.get("transforms").isEmpty()) {
            return;
        }
        for (JsonNode step : request.get("transforms")) {
            if (record != null) {
                record = transform(step).apply(record);
            }
        }
        if (record == null) {
            answer.putNull("transformed");
        } else {
            describe(record, answer.putObject("transformed"));
        }
    }

    /**
     * Reads headers as a worker with that converter does, and has the JDBC sink take them; tells
     * what SimpleHeaderConverter itself writes of the key, and why the sink refuses that.
     */
    private static void headers(JsonNode request, ObjectNode answer) throws IOException {
        String topic = request.get("topic").asText();
        HeaderConverter by = switch (request.get("by").asText()) {
            case "simple" -> SIMPLE_HEADERS;
            case "json" -> JSON_HEADERS;
            default -> throw new IllegalArgumentException(request.toString());
        };
        ObjectNode read = answer.putObject("headers");
        ConnectHeaders headers = new ConnectHeaders();
        for (Map.Entry<String, JsonNode> header : request.get("headers").properties()) {
            String name = header.getKey();
            headers.add(name, by.toConnectHeader(topic, name, bytes(header.getValue())));
            Header found = headers.lastWithName(name);
            describe(found.schema(), found.value(), read.putObject(name));
        }
        taken(topic, headers);
        SchemaAndValue key =
                converter(true, true).toConnectData(topic, bytes(request.get("key")));
        byte[] written = SIMPLE_HEADERS.fromConnectHeader(topic, "key", key.schema(), key.value());
        answer.put("written", text(written));
        try {
            taken(topic, new ConnectHeaders().add(
                    "key", SIMPLE_HEADERS.toConnectHeader(topic, "key", written)));
        } catch (ConnectException error) {
            answer.put("refused", error.toString());
        }
    }

    /** Does what the JDBC sink does first with each message; it looks at all headers. */
    private static void taken(String topic, Headers headers) {
        new KafkaDebeziumSinkRecord(
                record(topic, SchemaAndValue.NULL, SchemaAndValue.NULL, headers), "none");
    }

    private static SinkRecord record(
            String topic, SchemaAndValue key, SchemaAndValue value, Headers headers) {
        return new SinkRecord(topic, 0, key.schema(), key.value(), value.schema(), value.value(),
                ++offset, null, TimestampType.NO_TIMESTAMP_TYPE, headers);
    }

    private static JsonConverter converter(boolean isKey, boolean schemas) {
        return CONVERTERS.computeIfAbsent(isKey + " " + schemas, name -> {
            JsonConverter made = new JsonConverter();
            made.configure(Map.of("schemas.enable", String.valueOf(schemas)), isKey);
            return made;
        });
    }

    private static Transformation<SinkRecord> transform(JsonNode step) {
        return TRANSFORMS.computeIfAbsent(step.toString(), name -> {
            try {
                @SuppressWarnings("unchecked")
                Transformation<SinkRecord> made = (Transformation<SinkRecord>)
                        Class.forName(step.get("type").asText()).getConstructor().newInstance();
                made.configure(JSON.convertValue(
                        step.get("options"), new TypeReference<Map<String, String>>() { }));
                return made;
            } catch (ReflectiveOperationException error) {
                throw new IllegalArgumentException(step.toString(), error);
            }
        });
    }

    private static byte[] bytes(JsonNode base64) {
        return base64.isNull() ? null : Base64.getDecoder().decode(base64.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    private static void describe(SinkRecord record, ObjectNode into) {
        into.put("topic", record.topic());
        describe(record.keySchema(), record.key(), into.putObject("key"));
        describe(record.valueSchema(), record.value(), into.putObject("value"));
        ObjectNode headers = into.putObject("headers");
        for (Header header : record.headers()) {
            describe(header.schema(), header.value(), headers.putObject(header.key()));
        }
        into.put("is_envelope",
                record.valueSchema() != null && Envelope.isEnvelopeSchema(record.valueSchema()));
    }

    private static void describe(Schema schema, Object value, ObjectNode into) {
        if (schema != null) {
            ConnectSchema.validateValue(schema, value);
            if (value instanceof Struct struct) {
                struct.validate();
            }
        }
        into.set("schema", describe(schema));
        into.set("value", describe(schema, value));
    }

    // ---- Schemas

    private static JsonNode describe(Schema schema) {
        if (schema == null) {
            return JSON.nullNode();
        }
        ObjectNode described = JSON.createObjectNode();
        described.put("type", switch (schema.type()) {
            case FLOAT32 -> "float";  // as the JSON converter spells them
            case FLOAT64 -> "double";
            default -> schema.type().getName();
        });
        described.put("optional", schema.isOptional());
        if (schema.name() != null) {
            described.put("name", schema.name());
        }
        if (schema.version() != null) {
            described.put("version", schema.version());
        }
        if (schema.doc() != null) {
            described.put("doc", schema.doc());
        }
        if (schema.parameters() != null && !schema.parameters().isEmpty()) {
            described.set("parameters", JSON.valueToTree(schema.parameters()));
        }
        if (schema.defaultValue() != null) {
            described.set("default", describe(schema, schema.defaultValue()));
        }
        switch (schema.type()) {
            case STRUCT -> {
                ObjectNode fields = described.putObject("fields");
                for (Field field : schema.fields()) {
                    fields.set(field.name(), describe(field.schema()));
                }
            }
            case ARRAY -> described.set("items", describe(schema.valueSchema()));
            case MAP -> {
                described.set("keys", describe(schema.keySchema()));
                described.set("values", describe(schema.valueSchema()));
            }
            default -> { }
        }
        return described;
    }

    // ---- Values: [name of the Java class, content, what Debezium's classes take it for]

    private static JsonNode describe(Schema schema, Object value) {
        if (value == null) {
            return JSON.nullNode();
        }
        ArrayNode described = JSON.createArrayNode();
        if (value instanceof byte[] array) {
            value = ByteBuffer.wrap(array);
        }
        if (value instanceof Struct struct) {
            ObjectNode fields = described.add("Struct").addObject();
            for (Field field : struct.schema().fields()) {
                fields.set(field.name(), describe(field.schema(), struct.get(field)));
            }
        } else if (value instanceof Map<?, ?> map) {
            ObjectNode entries = described.add("Map").addObject();
            map.forEach((key, item) -> entries.set(key.toString(), describe(null, item)));
        } else if (value instanceof List<?> list) {
            ArrayNode items = described.add("List").addArray();
            list.forEach(item ->
                    items.add(describe(schema == null ? null : schema.valueSchema(), item)));
        } else if (value instanceof ByteBuffer buffer) {
            byte[] content = new byte[buffer.remaining()];
            buffer.duplicate().get(content);
            described.add("bytes").add(Base64.getEncoder().encodeToString(content));
        } else if (value instanceof Double number) {
            described.add("Double").add(Double.toHexString(number));
        } else if (value instanceof Float number) {
            described.add("Float").add(Float.toHexString(number));
        } else if (value instanceof BigDecimal number) {
            described.add("BigDecimal").add(number.toString());
        } else if (value instanceof java.util.Date date) {
            described.add("Date").add(String.valueOf(date.getTime()));
        } else {
            described.add(value.getClass().getSimpleName()).add(value.toString());
        }
        String meaning = schema == null || schema.name() == null ? null : meaning(schema, value);
        if (meaning != null) {
            described.add(meaning);
        }
        return described;
    }

    /** The value that a semantic type stands for, by the class that defines the type. */
    private static String meaning(Schema schema, Object value) {
        return switch (schema.name()) {
            case VariableScaleDecimal.LOGICAL_NAME -> VariableScaleDecimal.toLogical((Struct) value)
                    .getDecimalValue().orElseThrow().toString();
            case io.debezium.time.Date.SCHEMA_NAME ->
                    LocalDate.ofEpochDay((Integer) value).format(DATE);
            case io.debezium.time.MicroTime.SCHEMA_NAME ->
                    LocalTime.ofNanoOfDay((Long) value * 1000).format(TIME);
            case io.debezium.time.MicroTimestamp.SCHEMA_NAME ->
                    TIMESTAMP.format(micros((Long) value));
            case org.apache.kafka.connect.data.Date.LOGICAL_NAME ->
                    ((java.util.Date) value).toInstant().atOffset(ZoneOffset.UTC).format(DATE);
            case org.apache.kafka.connect.data.Time.LOGICAL_NAME ->
                    ((java.util.Date) value).toInstant().atOffset(ZoneOffset.UTC).format(TIME);
            case org.apache.kafka.connect.data.Timestamp.LOGICAL_NAME ->
                    TIMESTAMP.format(((java.util.Date) value).toInstant());
            case io.debezium.time.ZonedTime.SCHEMA_NAME -> OffsetTime
                    .parse((String) value, io.debezium.time.ZonedTime.FORMATTER)
                    .withOffsetSameInstant(ZoneOffset.UTC).format(TIME);
            case io.debezium.time.ZonedTimestamp.SCHEMA_NAME -> TIMESTAMP.format(OffsetDateTime
                    .parse((String) value, io.debezium.time.ZonedTimestamp.FORMATTER));
            default -> null;
        };
    }

    private static Instant micros(long value) {
        return Instant.ofEpochSecond(
                Math.floorDiv(value, 1_000_000L), Math.floorMod(value, 1_000_000L) * 1000);
    }

    // ---- What Debezium itself makes of things

    /** Reads the tableChanges of a schema change as a connector's schema history does. */
    private static void tableChanges(JsonNode request, ObjectNode answer) throws IOException {
        TableChanges changes = new JsonTableChangeSerializer().deserialize(
                ArrayReader.defaultReader().readArray(request.get("json").asText()), true);
        ArrayNode described = answer.putArray("changes");
        for (TableChanges.TableChange change : changes) {
            ObjectNode into = described.addObject();
            into.put("type", change.getType().name());
            into.put("database", change.getId().catalog());
            into.put("table", change.getId().table());
            if (change.getTable() == null) {  // it was dropped
                continue;
            }
            into.set("key", JSON.valueToTree(change.getTable().primaryKeyColumnNames()));
            ObjectNode columns = into.putObject("columns");
            for (Column column : change.getTable().columns()) {
                columns.put(column.name(), column.typeExpression() + " " + column.jdbcType()
                        + " " + column.length() + " " + column.scale().orElse(null)
                        + (column.isOptional() ? " NULL" : " NOT NULL")
                        + (column.isAutoIncremented() ? " IDENTITY" : ""));
            }
        }
    }

    /** Describes the schemas that Debezium has for what we send, given the message's own row. */
    private static void schemas(JsonNode request, ObjectNode answer) {
        String topic = request.get("topic").asText();
        Schema value = converter(false, true)
                .toConnectData(topic, bytes(request.get("value"))).schema();
        SchemaFactory factory = SchemaFactory.get();
        answer.set("envelope", describe(Envelope.defineSchema().withName(value.name())
                .withRecord(value.field("after").schema())
                .withSource(value.field("source").schema())
                .withTransaction(factory.transactionBlockSchema()).build().schema()));
        answer.set("source", describe(factory.sourceInfoSchemaBuilder().build()));
        answer.set("snapshot", describe(factory.snapshotRecordSchema()));
        answer.set("transaction_key", describe(factory.transactionKeySchema(SchemaNameAdjuster.NO_OP)));
        answer.set("transaction_value",
                describe(factory.transactionValueSchema(SchemaNameAdjuster.NO_OP)));
        answer.set("change", describe(factory.schemaHistoryChangeSchema(SchemaNameAdjuster.NO_OP)));
        answer.set("decfloat", describe(VariableScaleDecimal.schema()));
    }

    /** Describes the schemas of Debezium's heartbeats. */
    private static void heartbeat(ObjectNode answer) {
        SchemaFactory factory = SchemaFactory.get();
        answer.set("key", describe(factory.heartbeatKeySchema(SchemaNameAdjuster.NO_OP)));
        answer.set("value", describe(factory.heartbeatValueSchema(SchemaNameAdjuster.NO_OP)));
    }

    /** Hashes a text as column.mask.hash does. */
    private static void hash(JsonNode request, ObjectNode answer) {
        Column column = Column.editor().name("C").jdbcType(Types.VARCHAR)
                .length(request.get("length").asInt()).create();
        MaskStrings mask = new MaskStrings(
                request.get("salt").asText().getBytes(StandardCharsets.UTF_8),
                request.get("algorithm").asText(),
                MaskStrings.HashingByteArrayStrategy.valueOf(request.get("version").asText()));
        answer.put("hash", (String) mask.create(column).convert(request.get("text").asText()));
    }

    /** Makes names safe as the two name adjustment modes do. */
    private static void adjust(JsonNode request, ObjectNode answer) {
        String mode = request.get("mode").asText();
        String name = request.get("name").asText();
        answer.put("schema", CommonConnectorConfig.SchemaNameAdjustmentMode.parse(mode)
                .createAdjuster().adjust(name));
        answer.put("field", CommonConnectorConfig.FieldNameAdjustmentMode.parse(mode)
                .createAdjuster().adjust(name));
    }
}
