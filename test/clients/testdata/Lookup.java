import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.Collections;
import java.util.Hashtable;
import javax.naming.Context;
import javax.naming.NameNotFoundException;
import javax.naming.NamingException;
import javax.naming.directory.Attribute;
import javax.naming.directory.DirContext;
import javax.naming.directory.InitialDirContext;

/**
 * Lookup SERVER TYPE/NAME... sends each question to a server by the DNS provider of JNDI, and looks up ADDRESSES by InetAddress.
 * It prints "= TYPE/NAME", a line for each record of the reply, and "status STATUS".
 */
public class Lookup {
    public static void main(String[] args) throws Exception {
        Hashtable<String, String> environment = new Hashtable<>();
        environment.put(Context.INITIAL_CONTEXT_FACTORY, "com.sun.jndi.dns.DnsContextFactory");
        environment.put(Context.PROVIDER_URL, "dns://" + args[0]);
        DirContext context = new InitialDirContext(environment);
        for (int i = 1; i < args.length; i++) {
            String[] question = args[i].split("/", 2);
            System.out.println("= " + args[i]);
            if (question[0].equals("ADDRESSES")) {
                addresses(question[1]);
            } else {
                records(context, question[0], question[1]);
            }
        }
    }

    static void records(DirContext context, String type, String name) {
        try {
            Attribute all = context.getAttributes(name, new String[] {type}).get(type);
            if (all == null) {
                System.out.println("status NODATA");
                return;
            }
            for (Object data : Collections.list(all.getAll())) {
                System.out.println(type + " " + data);
            }
            System.out.println("status NOERROR");
        } catch (NameNotFoundException e) {
            System.out.println("status NXDOMAIN");
        } catch (NamingException e) {
            System.out.println("status " + e);
        }
    }

    static void addresses(String name) {
        try {
            for (InetAddress address : InetAddress.getAllByName(name)) {
                System.out.println((address instanceof Inet6Address ? "AAAA " : "A ") + address.getHostAddress());
            }
            System.out.println("status NOERROR");
        } catch (UnknownHostException e) {
            boolean absent = e.getMessage().endsWith(": Name or service not known");
            System.out.println("status " + (absent ? "NXDOMAIN" : e.getMessage()));
        }
    }
}
