"""lookup.py SERVER TYPE/NAME... sends each question to a server by dnspython's resolver. It prints "= TYPE/NAME", a line for
each record of the reply, and "status STATUS"."""

import sys

import dns.rdatatype
import dns.resolver

resolver = dns.resolver.Resolver(configure=False)
resolver.nameservers = [sys.argv[1]]
for question in sys.argv[2:]:
    rdtype, name = question.split("/")
    print("=", question)
    try:
        answer = resolver.resolve(name, rdtype, lifetime=10)
        for rrset in answer.response.answer:
            for rdata in rrset:
                print(dns.rdatatype.to_text(rrset.rdtype), rdata.to_text())
        print("status NOERROR")
    except dns.resolver.NXDOMAIN:
        print("status NXDOMAIN")
    except dns.resolver.NoAnswer:
        print("status NODATA")
