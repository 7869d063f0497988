// A worker in Java: waits for jobs, closes their orders, and says that they are finished.
//
//     javac -d . Queue.java Shop.java Worker.java && java Worker
//
// The JDK reads no JSON. Use the library that your program has; a pattern is enough for these three fields.

import java.io.IOException;
import java.util.regex.Pattern;

public final class Worker {
    private static final Pattern RECEIPT = Pattern.compile("\"receipt\":\"([^\"]+)\"");
    private static final Pattern ORDER = Pattern.compile("\"order\":\\s*\"([^\"]+)\"");
    private static final Pattern DUE = Pattern.compile("\"due_ms\":(\\d+)");

    public static void main(String[] arguments) throws InterruptedException {
        while (true) {
            try {
                // A long poll: answered when a job is ready, or after twenty seconds without one.
                var reserved = Queue.ask(
                        "POST", "/v1/topics/close-order-java/reserve", "{\"most\": 1, \"wait_ms\": 20000}");
                var receipt = RECEIPT.matcher(reserved);
                if (!receipt.find()) {
                    continue;
                }
                // UPDATE orders SET state = 'closed' WHERE id = … AND state = 'unpaid'
                System.out.println("closed " + first(ORDER, reserved) + " due " + first(DUE, reserved) + " at "
                        + System.currentTimeMillis());
                Queue.ask("POST", "/v1/receipts/finish", "{\"receipts\": [\"" + receipt.group(1) + "\"]}");
            } catch (IOException error) {
                System.err.println(error.getMessage());
                Thread.sleep(1000); // what was not finished comes again when its time to run is over
            }
        }
    }

    private static String first(Pattern pattern, String text) {
        var found = pattern.matcher(text);
        return found.find() ? found.group(1) : "";
    }
}
