import java.util.ArrayList;
import java.util.Enumeration;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnectionFactory;

/** A JMS client: `send URL DESTINATION KIND...` or `read URL QUEUE COUNT SENT_TO`. */
public class JmsClient {
    private static final long TIMEOUT_MS = 60_000;

    public static void main(String[] args) throws Exception {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(args[1]);
        Connection connection = factory.createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        boolean isTopic = args[2].startsWith("topic:");
        Destination destination =
            isTopic ? session.createTopic(args[2].substring(6)) : session.createQueue(args[2]);
        if (args[0].equals("send")) {
            MessageProducer producer = session.createProducer(destination);
            for (int index = 3; index < args.length; index++) {
                send(session, producer, args[2], args[index]);
            }
        } else {
            MessageConsumer consumer = session.createConsumer(destination, "sentTo = '" + args[4] + "'");
            for (int count = Integer.parseInt(args[3]); count > 0; count--) {
                print(consumer.receive(TIMEOUT_MS));
            }
        }
        connection.close();
    }

    private static void send(Session session, MessageProducer producer, String sentTo, String kind)
            throws JMSException {
        Message message = made(session, kind);
        message.setStringProperty("kind", kind);
        message.setStringProperty("sentTo", sentTo);
        message.setStringProperty("JMSXGroupID", "g");
        if (kind.startsWith("grouped")) {
            message.setStringProperty("x-idempotent-group", "g");
        }
        boolean isKept = !kind.equals("passing-map");
        producer.setDeliveryMode(isKept ? DeliveryMode.PERSISTENT : DeliveryMode.NON_PERSISTENT);
        producer.send(message);
    }

    private static Message made(Session session, String kind) throws JMSException {
        switch (kind) {
            case "map":
            case "passing-map":
                MapMessage map = session.createMapMessage();
                map.setString("name", "value");
                return map;
            case "object":
                ArrayList<String> list = new ArrayList<>();
                list.add("value");
                return session.createObjectMessage(list);
            case "stream":
                StreamMessage stream = session.createStreamMessage();
                stream.writeString("value");
                return stream;
            case "bytes":
                BytesMessage bytes = session.createBytesMessage();
                bytes.writeBytes(new byte[] {0, (byte) 0xED, (byte) 0xA0, (byte) 0x80});
                return bytes;
            case "empty-bytes":
                return session.createBytesMessage();
            case "empty-text":
                return session.createTextMessage("");
            case "no-text":
                return session.createTextMessage();
            case "plain":
                return session.createMessage();
            case "half-pair":
                return session.createTextMessage("a\uD83D");
            default:
                return session.createTextMessage("\u00F6\uD83D\uDE00\u0000end");
        }
    }

    /** One line: the type, the body with all but ASCII escaped, and the properties. */
    private static void print(Message message) throws JMSException {
        StringBuilder line = new StringBuilder(message.getClass().getSimpleName());
        if (message instanceof TextMessage) {
            line.append("|body=").append(escaped(((TextMessage) message).getText()));
        } else if (message instanceof MapMessage) {
            line.append("|body=").append(((MapMessage) message).getString("name"));
        } else if (message instanceof BytesMessage) {
            line.append("|body=").append(((BytesMessage) message).getBodyLength());
        } else if (message instanceof StreamMessage) {
            line.append("|body=").append(((StreamMessage) message).readString());
        }
        for (Enumeration<?> names = message.getPropertyNames(); names.hasMoreElements();) {
            String name = (String) names.nextElement();
            line.append("|").append(name).append("=").append(escaped(message.getStringProperty(name)));
        }
        System.out.println(line);
    }

    private static String escaped(String text) {
        StringBuilder found = new StringBuilder();
        for (char unit : (text == null ? "" : text).toCharArray()) {
            found.append(unit >= ' ' && unit < 127 ? String.valueOf(unit) : String.format("\\u%04x", (int) unit));
        }
        return found.toString();
    }
}
