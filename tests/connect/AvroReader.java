// Reads our Avro messages with the Kafka Connect converter of Apicurio Registry, and makes Avro of
// Connect data with its AvroData, a descendant of Confluent's. One request per line of standard
// input, one answer per line of standard output, both JSON. Python's side: avro_reader.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.apicurio.registry.serde.avro.NonRecordContainer;
import io.apicurio.registry.utils.converter.AvroConverter;
import io.apicurio.registry.utils.converter.avro.AvroData;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;

public final class AvroReader {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final AvroData AVRO = new AvroData(100);
    private static final Map<String, AvroConverter<Object>> CONVERTERS = new HashMap<>();
    private static final JsonConverter CONNECT_JSON = new JsonConverter();

    public static void main(String[] arguments) throws IOException {
        // What libraries write to standard output must not get into the answers.
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        CONNECT_JSON.configure(
                Map.of("schemas.enable", "true", "replace.null.with.default", "false"), false);
        BufferedReader requests =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode request = JSON.readTree(line);
                if (request.has("message")) {
                    read(request, answer);
                } else {
                    write(request, answer);
                }
            } catch (Exception | LinkageError error) {
                answer.removeAll();
                StringBuilder text = new StringBuilder();
                for (Throwable at = error; at != null; at = at.getCause()) {
                    text.append(text.isEmpty() ? "" : "; because of ").append(at);
                }
                answer.put("error", text.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
        }
    }

    // A message, by its schema in a registry -> Connect schema and value, as JsonConverter's JSON.
    private static void read(JsonNode request, ObjectNode answer) throws IOException {
        String topic = request.get("topic").asText();
        SchemaAndValue read =
                converter(request.get("registry").asText())
                        .toConnectData(topic, request.get("message").binaryValue());
        answer.set(
                "connect",
                JSON.readTree(CONNECT_JSON.fromConnectData(topic, read.schema(), read.value())));
    }

    // Connect schema and value, as JsonConverter's JSON -> Avro schema and Avro's bytes.
    private static void write(JsonNode request, ObjectNode answer) throws IOException {
        byte[] json = JSON.writeValueAsBytes(request.get("connect"));
        SchemaAndValue connect = CONNECT_JSON.toConnectData("topic", json);
        org.apache.avro.Schema schema = AVRO.fromConnectSchema(connect.schema());
        Object value = AVRO.fromConnectData(connect.schema(), connect.value());
        if (value instanceof NonRecordContainer<?> container) {
            value = container.getValue();
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<Object>(schema).write(value, encoder);
        encoder.flush();
        answer.put("schema", schema.toString());
        answer.put("avro", bytes.toByteArray());
    }

    private static AvroConverter<Object> converter(String registry) {
        return CONVERTERS.computeIfAbsent(
                registry,
                address -> {
                    AvroConverter<Object> made = new AvroConverter<>();
                    made.configure(
                            Map.of(
                                    "apicurio.registry.url", address + "/apis/registry/v2",
                                    "apicurio.registry.as-confluent", "true",
                                    "apicurio.registry.use-id", "contentId"),
                            false);
                    return made;
                });
    }
}
