import io.github.cuihairu.redis.streaming.mq.Message;
import io.github.cuihairu.redis.streaming.mq.MessageHandleResult;
import io.github.cuihairu.redis.streaming.mq.MessageQueueFactory;
import io.github.cuihairu.redis.streaming.mq.config.MqOptions;
import java.util.HashMap;
import java.util.Map;
import org.redisson.Redisson;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Sends messages of each kind, fails at all of them, and holds its lease: address, milliseconds. */
public class Referee {
    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]).setConnectionMinimumIdleSize(1);
        config.setCodec(StringCodec.INSTANCE);
        var factory = new MessageQueueFactory(
                Redisson.create(config),
                MqOptions.builder()
                        .leaseTtlSeconds(30)
                        .retryBaseBackoffMs(100)
                        .retryMaxBackoffMs(100)
                        .build());
        var producer = factory.createProducer();
        producer.send("orders", Map.of("orderId", 123)).get();
        var keyed = new Message("orders", "customer-7", (Object) Map.of("orderId", 123));
        keyed.setHeaders(new HashMap<>(Map.of("trace", "t-1")));
        producer.send(keyed).get();
        producer.send("orders", "{\"orderId\":123,\"text\":\"" + "x".repeat(70_000) + "\"}").get();
        var consumer = factory.createConsumer("consumer-java");
        consumer.subscribe("orders", "java-group", message -> MessageHandleResult.RETRY);
        consumer.start();
        System.out.println("ready");
        Thread.sleep(Long.parseLong(arguments[1]));
        Runtime.getRuntime().halt(0);
    }
}
