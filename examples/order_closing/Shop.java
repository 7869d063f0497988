// A shop in Java: each order gets a job that closes it, and half of the customers pay in time.
//
//     javac -d . Queue.java Shop.java Worker.java && java Shop

import java.time.LocalTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;

public final class Shop {
    private static final String JOBS = "/v1/topics/close-order-java/jobs";
    private static final long PAY_WITHIN_MS = 3000; // thirty minutes, turned into three seconds for trying

    public static void main(String[] arguments) throws Exception {
        var time = LocalTime.now().format(DateTimeFormatter.ofPattern("HHmmss"));
        var orders = new ArrayList<String>();
        for (int number = 0; number < 6; number++) {
            var order = "java-" + time + "-" + number;
            // Here the order goes into your database, as unpaid.
            Queue.ask("POST", JOBS, """
                    {"id": "%s", "body": {"order": "%s"}, "delay_ms": %d, "ttr_ms": 10000}
                    """.formatted(order, order, PAY_WITHIN_MS));
            orders.add(order);
            System.out.println("made " + order);
        }
        for (int number = 0; number < orders.size(); number += 2) {
            // UPDATE orders SET state = 'paid' WHERE id = … AND state = 'unpaid'
            Queue.ask("DELETE", JOBS + "/" + orders.get(number), null);
            System.out.println("paid " + orders.get(number));
        }
    }
}
