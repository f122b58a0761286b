import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A Java client: `send BOOTSTRAP TOPIC VALUE...`, `transact ...` or `read BOOTSTRAP TOPIC COUNT`. */
public class JavaKafka {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[1]);
        List<String> values = List.of(args).subList(3, args.length);
        switch (args[0]) {
            case "send":
                send(settings, args[2], values);
                break;
            case "transact":
                transact(settings, args[2], values);
                break;
            default:
                read(settings, args[2], Integer.parseInt(args[3]));
        }
    }

    /** The defaults of this client: an idempotent producer, and murmur2 of the key. */
    private static void send(Properties settings, String topic, List<String> values) throws Exception {
        try (KafkaProducer<String, String> producer = producer(settings)) {
            for (String value : values) {
                producer.send(record(topic, value)).get();
            }
        }
    }

    /** Each value in a transaction of its own, which is aborted if the value says so. */
    private static void transact(Properties settings, String topic, List<String> values) throws Exception {
        settings.put("transactional.id", topic);
        try (KafkaProducer<String, String> producer = producer(settings)) {
            producer.initTransactions();
            for (String value : values) {
                producer.beginTransaction();
                producer.send(record(topic, value)).get();
                if (value.startsWith("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
    }

    private static KafkaProducer<String, String> producer(Properties settings) {
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** The key is the value without what follows its last dash; the id of the event is the value. */
    private static ProducerRecord<String, String> record(String topic, String value) {
        String key = value.substring(0, Math.max(value.lastIndexOf('-'), 0));
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, key, value);
        record.headers().add("event", value.getBytes(StandardCharsets.UTF_8)).add("none", null);
        record.headers().add("twice", new byte[] {'1'}).add("twice", new byte[] {'2'});
        return record;
    }

    /** One line a record: partition, key, value and headers, as UTF-8. */
    private static void read(Properties settings, String topic, int count) {
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            List<TopicPartition> all = consumer.partitionsFor(topic).stream()
                .map(one -> new TopicPartition(topic, one.partition())).collect(Collectors.toList());
            consumer.assign(all);
            for (int found = 0; found < count;) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    print(record);
                    found++;
                }
            }
        }
    }

    private static void print(ConsumerRecord<String, String> record) {
        StringBuilder line = new StringBuilder();
        line.append(record.partition()).append("|").append(record.key()).append("|").append(record.value());
        for (Header header : record.headers()) {
            byte[] value = header.value();
            String text = value == null ? "null" : new String(value, StandardCharsets.UTF_8);
            line.append("|").append(header.key()).append("=").append(text);
        }
        System.out.write(line.append("\n").toString().getBytes(StandardCharsets.UTF_8), 0,
            line.toString().getBytes(StandardCharsets.UTF_8).length);
        System.out.flush();
    }
}
